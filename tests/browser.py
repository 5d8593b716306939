"""A page in a headless Chromium, driven over its DevTools protocol with aiohttp, which textual-serve brings."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import subprocess
from typing import TYPE_CHECKING, Any

import aiohttp
from chromium import command
from waiting import DEADLINE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_POLL_SECONDS = 0.02


class Browser:
    """One page. Use as an asynchronous context.

    Args:
        folder: for the browser's profile.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.received: list[str] = []
        """What the page's websockets have received, as text."""
        self.failed: list[str] = []
        """Words of the browser on what it refused or could not load."""
        self.texts: list[str] = []
        """Documents that were loaded, as text."""
        self.asked: list[str] = []
        """Addresses that the page has asked for."""
        self._loaded: set[asyncio.Task[None]] = set()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Browser:
        self._process = await asyncio.create_subprocess_exec(
            *command(self._folder / "profile", "--remote-debugging-port=0", "--window-size=1200,700", "about:blank"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._session = aiohttp.ClientSession()
        self._socket = await self._session.ws_connect(await self._page_address(), max_msg_size=2**26)
        self._reading = asyncio.create_task(self._read())
        for domain in ("Network", "Page", "Log", "Runtime"):
            await self.send(f"{domain}.enable")
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.send("Browser.close"), 5)
        self._reading.cancel()
        await self._session.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def send(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result."""
        number = len(self._answers) + 1
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        return await asyncio.wait_for(answer, DEADLINE_SECONDS)

    async def open(self, url: str) -> None:
        """Open an address."""
        await self.send("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page; a promise is awaited."""
        found = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        return found["result"].get("value")

    async def press(self, key: str) -> None:
        """Press a key that has a character."""
        await self.send("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        await self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def picture(self, path: Path) -> None:
        """Save a picture of the page."""
        found = await self.send("Page.captureScreenshot")
        path.write_bytes(base64.b64decode(found["data"]))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that the browser reports makes a condition true."""
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(condition), DEADLINE_SECONDS)

    async def until_received(self, text: str, *, after: int = 0) -> None:
        """Wait for a text on a websocket, in the messages after these."""
        await self.until(lambda: text in "".join(self.received[after:]))

    async def _page_address(self) -> str:
        port_file = self._folder / "profile" / "DevToolsActivePort"
        for _ in range(round(DEADLINE_SECONDS / _POLL_SECONDS)):
            with contextlib.suppress(OSError, aiohttp.ClientError, IndexError):
                port = port_file.read_text().splitlines()[0]
                async with self._session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = [page for page in await answer.json() if page["type"] == "page"]
                return str(pages[0]["webSocketDebuggerUrl"])
            await asyncio.sleep(_POLL_SECONDS)
        raise AssertionError("Chromium has not started")

    async def _read(self) -> None:
        async for message in self._socket:
            found = message.json()
            if "id" in found:
                self._answers[found["id"]].set_result(found.get("result", {}))
                continue
            if found["method"] == "Page.loadEventFired":
                self._loaded.add(asyncio.create_task(self._note_text()))
                continue
            async with self._changed:
                self._note(found["method"], found["params"])
                self._changed.notify_all()

    async def _note_text(self) -> None:
        text = await self.run("document.documentElement.outerHTML")
        async with self._changed:
            self.texts.append(text or "")
            self._changed.notify_all()

    def _note(self, method: str, facts: dict[str, Any]) -> None:
        if method == "Network.webSocketFrameReceived":
            frame = facts["response"]
            binary = frame["opcode"] == 2
            text = base64.b64decode(frame["payloadData"]).decode(errors="replace") if binary else frame["payloadData"]
            self.received.append(text)
        elif method == "Network.requestWillBeSent":
            self.asked.append(facts["request"]["url"])
        elif method == "Network.webSocketCreated":
            self.asked.append(facts["url"])
        elif method == "Log.entryAdded":
            self.failed.append(facts["entry"]["text"])
