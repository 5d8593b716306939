"""A Python that counts how often it is started, also by what keeps a program from all real files."""

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

SCRIPT = """#!/bin/bash
exec 9<>/dev/tcp/127.0.0.1/{port}
read -N 1 <&9
exec 9<&-
{then}
"""


@contextlib.contextmanager
def counted_python(file: Path, *, runs: bool = True) -> Iterator[Callable[[], int]]:
    """Write a program that knocks at a port and then is Python; yield how often it has been started so far.

    Args:
        file: the program.
        runs: False: it ends after it has knocked.
    """
    count = 0
    server = socket.create_server(("127.0.0.1", 0))
    file.write_text(SCRIPT.format(port=server.getsockname()[1], then=f'exec {sys.executable} "$@"' if runs else ""))
    file.chmod(0o755)

    def answer() -> None:
        nonlocal count
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                count += 1
                with client, contextlib.suppress(OSError):
                    client.sendall(b"x")

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield lambda: count
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()
