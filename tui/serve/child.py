"""The process of one dashboard: started without a shell, and ended with its page, or with the server."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual_serve.app_service import AppService

from vramtop.estimator.trace.start_python import safe_environment

from ..draw.text_output import printable
from ..tty.terminal_app import SERVED_DRIVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

_RUN = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; sys.argv[0] = 'vramtop'; "
    "from vramtop.tui.cli import main; sys.exit(main())"
)
"""Runs vramtop where paths mean the same as for the server, without imports from the current folder."""
_END_SECONDS = 5.0
"""Time in which a dashboard ends by itself before it is killed: a driver call may hang."""
_BEGIN = b"__GANGLION__\n"
"""What Textual's driver writes first."""
_MAX_ERROR_BYTES = 2**14
_NOT_PASSED_ON = ("COLUMNS", "LINES", "ROWS", "NO_COLOR", "TEXTUAL", "TEXTUAL_LOG", "TEXTUAL_THEME", "TMUX", "STY")
"""Variables about the terminal in which the server was started."""


class Dashboard(AppService):
    """A dashboard and its page.

    Args:
        flags: the dashboard's command line.
        **page: how to write to the page; see ``AppService``.
    """

    def __init__(self, flags: Sequence[str], **page: Any) -> None:
        super().__init__("", **page)
        self._flags = flags

    async def _open_app_process(self, width: int = 80, height: int = 24) -> asyncio.subprocess.Process:
        environment = self._build_environment(width=width, height=height)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _RUN,
            *self._flags,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C in the server's terminal ends it in order, through its page
        )
        self._process, self._stdin = process, process.stdin
        return process

    def _build_environment(self, width: int = 80, height: int = 24) -> dict[str, str]:
        built = super()._build_environment(width=width, height=height)
        environment = {name: value for name, value in built.items() if name not in _NOT_PASSED_ON}
        return safe_environment(environment, Path(sys.executable)) | {
            "TEXTUAL_DRIVER": SERVED_DRIVER,
            "COLUMNS": str(width),
            "ROWS": str(height),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
        }

    async def run(self) -> None:
        """Pass on what the dashboard draws until it ends; then close its page.

        The browser is told nothing else: no addresses to open, no files. What the dashboard says when it fails is
        shown in the page, and on the server's standard error.
        """
        process = self._process
        if process is None or process.stdout is None or process.stderr is None:
            return
        errors = asyncio.create_task(_last_bytes(process.stderr))
        try:
            async for kind, payload in _packets(process.stdout):
                if kind == b"D":
                    await self.remote_write_bytes(payload)
                elif kind == b"M" and b'"exit"' in payload:
                    break
            else:  # it has ended without saying that it would
                said = [printable(line) for line in (await errors).decode(errors="replace").splitlines()]
                if said:
                    sys.stderr.write("\n".join(said) + "\n")
                    await self.remote_write_bytes("\r\n".join(said).encode())
            await self.remote_close()
        except (ConnectionError, RuntimeError):  # the page is gone
            pass
        finally:
            errors.cancel()

    async def stop(self) -> None:
        """Have the dashboard end, and end it if it does not."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(super().stop(), _END_SECONDS)
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _packets(stream: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield kind and content of the packets of Textual's driver, after the line with which they begin."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        await stream.readuntil(_BEGIN)
        while True:
            kind, size = await stream.readexactly(1), await stream.readexactly(4)
            yield kind, await stream.readexactly(int.from_bytes(size, "big"))


async def _last_bytes(stream: asyncio.StreamReader) -> bytes:
    """Return the end of a stream, when it has ended."""
    last = b""
    while data := await stream.read(_MAX_ERROR_BYTES):
        last = (last + data)[-_MAX_ERROR_BYTES:]
    return last
