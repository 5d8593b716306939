"""A Python that has imported torch before it is started, so that each program that needs torch begins at once.

``server SOCKET OWNER MODULE... -- MODULE...`` imports the modules, and forks for each program, until its owner ends.
Those behind ``--`` read the variables of the hub while they are imported: a program that has others of them gets the
first modules only. The file that ``preloaded_python`` writes is started like Python itself (``FILE ARGS``, with its own
folder, environment and output) and asks the server.
"""

import atexit
import contextlib
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from importlib import import_module
from pathlib import Path

from waiting import until

HUB = {"HF_HUB_OFFLINE": "1"}
"""Variables of the hub while all modules are imported: those of a test that sets none."""
CLIENT = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
hub = {{name: text for name, text in os.environ.items() if name.startswith("HF_")}}
server.connect({socket!r} if hub == {hub!r} else {socket!r} + ".first")
words = sys.argv[1:]
request = json.dumps([words, dict(os.environ), os.getcwd()]).encode()
socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
server.sendall(request)
os._exit(int.from_bytes(server.recv(1) or b"\\x01", "big"))
"""


def preloaded_python(folder: Path, *modules: str, owner: int) -> str:
    """Return the path of a Python that has imported some modules, until the owner ends.

    Args:
        folder: processes that name the same one share it.
        modules: their names; those that read variables of the hub stand behind "--".
        owner: pid of a process.
    """
    door, program = folder / "door", folder / "python"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not door.exists():
            program.write_text(CLIENT.format(python=sys.executable, socket=str(door), hub=HUB))
            program.chmod(0o755)
            environ = {name: text for name, text in os.environ.items() if not name.startswith("HF_")} | HUB
            subprocess.Popen([sys.executable, __file__, str(door), str(owner), *modules], env=environ)
            until(door.exists)
    return str(program)


def _serve(door: str, owner: int, modules: list[str]) -> None:
    first, later = modules[: modules.index("--")], modules[modules.index("--") + 1 :]
    for module in first:
        import_module(module)
    if os.fork():
        door += ".first"
    else:
        for module in later:
            import_module(module)
    gc.freeze()  # a collection of garbage that goes through all that is imported takes half a second
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{door}.new")
    listener.listen()
    Path(f"{door}.new").rename(door)
    ended = os.pidfd_open(owner)
    while ended not in select.select([listener, ended], [], [])[0]:
        client, _ = listener.accept()
        if not os.fork():
            listener.close()
            os.close(ended)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(client)
        client.close()


def _answer(client: socket.socket) -> None:
    """Run a client's program, and end it when the client ends."""
    size, descriptors, _, _ = socket.recv_fds(client, 8, 3)
    with client.makefile("rb") as request:
        words, environ, folder = json.loads(request.read(int.from_bytes(size, "big")))
    program = os.fork()
    if not program:
        os.setpgid(0, 0)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environ)
        tempfile.tempdir = None  # that of TMPDIR
        sys.argv = words
        added = os.environ.get("PYTHONPATH")
        sys.path[:1] = [str(Path(words[0]).resolve().parent), *(added.split(os.pathsep) if added else ())]
        _run(words[0])
    ended = os.pidfd_open(program)
    ready, _, _ = select.select([client, ended], [], [])
    if ended not in ready:
        os.kill(program, signal.SIGKILL)
    _, status = os.waitpid(program, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program, signal.SIGKILL)  # what it has started
    client.sendall(os.waitstatus_to_exitcode(status).to_bytes(1, "big") if os.WIFEXITED(status) else b"\xff")
    os._exit(0)


def _run(program: str) -> None:
    """Run a program, and end without taking apart all that is imported, which takes three seconds."""
    code: object = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
