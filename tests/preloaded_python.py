"""A Python that has imported torch before it is started, so that each program that needs torch begins at once.

``server SOCKET OWNER MODULE...`` imports the modules, and forks for each program, until its owner ends. The file that
``preloaded_python`` writes is started like Python itself (``FILE ARGS`` or ``-u -c CODE``, with its own folder,
environment and output) and asks the server. A program imports the package that ``VRAMTOP_TESTS_ANEW`` names itself.

``server SOCKET OWNER tests WORD...`` collects the tests of ``pytest WORD...`` first: workers of pytest-xdist that are
forked from it have imported all modules.
"""

import atexit
import contextlib
import fcntl
import gc
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from importlib import import_module, reload
from pathlib import Path

from waiting import until

COLLECTED = "tests"
ESTIMATOR = str(Path(__file__).parents[1] / "estimator")
CLIENT = """#!{python} -IS
import _socket, marshal, os, sys  # socket and json take as long to import as Python takes to start
server = _socket.socket(_socket.AF_UNIX)
server.connect({socket!r})
request = marshal.dumps([sys.argv[1:], dict(os.environ), os.getcwd()])
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
server.sendmsg([len(request).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
server.sendall(request)
os._exit(int.from_bytes(server.recv(1) or b"\\x01", "big"))
"""


def preloaded_python(folder: Path, *modules: str, owner: int) -> str:
    """Return the path of a Python that has imported some modules, until the owner ends.

    Args:
        folder: processes that name the same one share it.
        modules: their names, or ``COLLECTED`` and words for pytest.
        owner: pid of a process.
    """
    door, program = folder / "door", folder / "python"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not door.exists():
            program.write_text(CLIENT.format(python=sys.executable, socket=str(door)))
            program.chmod(0o755)
            server = subprocess.Popen([sys.executable, __file__, str(door), str(owner), *modules])
            until(lambda: door.exists() or server.poll() is not None, seconds=600)
    return str(program)


def _serve(door: str, owner: int, modules: list[str]) -> None:
    if modules[0] == COLLECTED:
        _collect(modules[1:])
    else:
        sys.path.insert(0, ESTIMATOR)  # in which a rehearsal finds its package
        for module in modules:
            import_module(module)
        del sys.path[0]
    for each in tuple(weakref.finalize._registry):
        each.atexit = False  # they take apart what is imported, at the end of every program
    gc.freeze()  # a collection of garbage that goes through all that is imported takes half a second
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{door}.new")
    listener.listen()
    Path(f"{door}.new").rename(door)
    ended = os.pidfd_open(owner)
    running: dict[int, tuple[socket.socket, int]] = {}
    """The client and the pid of each program, by its pidfd. A process between them would cost another fork of torch."""
    while True:
        ready = select.select([listener, ended, *running, *(client for client, _ in running.values())], [], [])[0]
        if ended in ready:
            break
        for pidfd, (client, program) in list(running.items()):
            if pidfd in ready or client in ready:
                del running[pidfd]
                os.close(pidfd)
                _end(client, program, has_ended=pidfd in ready)
        if listener in ready:
            client, _ = listener.accept()
            program = _start(
                client, [listener.fileno(), ended, *running, *(each.fileno() for each, _ in running.values())]
            )
            running[os.pidfd_open(program)] = client, program


def _collect(words: list[str]) -> None:
    """Import all modules of tests, but for those whose import ends early: the workers try these again, and tell."""
    import pytest

    class Reports:
        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if not report.passed:
                sys.modules.pop(report.nodeid.removesuffix(".py").replace("/", "."), None)

    options = ["--numprocesses=0", "--collect-only", "--quiet", "-p", "no:cacheprovider"]
    with (
        Path(os.devnull).open("w") as nothing,
        contextlib.redirect_stdout(nothing),
        contextlib.redirect_stderr(nothing),
    ):
        code = pytest.main([*words, *options], plugins=[Reports()])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        folder = str(Path(__file__).parent)
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(folder):
                del sys.modules[name]


def _start(client: socket.socket, of_server: list[int]) -> int:
    """Start a client's program, without the server's descriptors, and return its pid."""
    size, descriptors, _, _ = socket.recv_fds(client, 8, 3)
    with client.makefile("rb") as request:
        words, environ, folder = marshal.loads(request.read(int.from_bytes(size, "big")))  # noqa: S302
    program = os.fork()
    if not program:
        os.setpgid(0, 0)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        for descriptor in (*of_server, client.fileno(), *descriptors):
            os.close(descriptor)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environ)
        tempfile.tempdir = None  # that of TMPDIR
        sys.argv = words
        added = os.environ.get("PYTHONPATH")
        of_program = "" if words[0] == "-u" else str(Path(words[0]).resolve().parent)
        sys.path[:1] = [of_program, *(added.split(os.pathsep) if added else ())]
        if package := os.environ.get("VRAMTOP_TESTS_ANEW"):
            for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
                del sys.modules[name]
        _read_variables_of_the_hub()
        _run(words)
    for descriptor in descriptors:
        os.close(descriptor)
    return program


def _read_variables_of_the_hub() -> None:
    """Let the hub's library, which has been imported already, find what the environment names now."""
    if "huggingface_hub.hf_api" in sys.modules:
        constants = reload(sys.modules["huggingface_hub.constants"])
        sys.modules["huggingface_hub.hf_api"].api.endpoint = constants.ENDPOINT


def _end(client: socket.socket, program: int, *, has_ended: bool) -> None:
    """Tell a client how its program has ended; end the program of a client that has ended."""
    if not has_ended:
        os.kill(program, signal.SIGKILL)
    _, status = os.waitpid(program, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program, signal.SIGKILL)  # what it has started
    with client, contextlib.suppress(BrokenPipeError):  # the client was killed
        client.sendall(os.waitstatus_to_exitcode(status).to_bytes(1, "big") if os.WIFEXITED(status) else b"\xff")


class _QuickEnd:
    """Ends a program without taking apart all that is imported, which takes three seconds.

    A context, as rehearsals look for handlers of exceptions around what a program does.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        code = error.code or 0 if isinstance(error, SystemExit) else int(error is not None)
        if kind is not None and not isinstance(error, SystemExit):
            sys.excepthook(kind, error, trace)
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


def _run(words: list[str]) -> None:
    with _QuickEnd():
        if words[0] == "-u":
            exec(words[2], {"__name__": "__main__"})  # noqa: S102 - as Python does
        else:
            runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
