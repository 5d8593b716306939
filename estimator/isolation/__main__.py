"""Keeper of one program: starts it apart from what is real, watches it, and leaves nothing behind.

Argument: a request as JSON: ``scratch`` (a folder, which the keeper removes), ``folder``, ``words``, ``offline``,
and ``level`` to take one of ``LEVELS`` instead of the first that this kernel has. Standard output and error are the
program's. When it has ended with all its children, ``report.json`` is in the scratch folder, and only then does the
output end. The scratch folder is removed when standard input ends; if that ends earlier, so does the program:
whoever waits for the answer has gone, however that happened.
"""

import contextlib
import fcntl
import json
import os
import platform
import select
import shutil
import signal
import socket
import stat
import struct
import sys
import time
from typing import Any

if not __package__:  # run by its path: import the folder as a package
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, os.path.dirname(folder))
    __package__ = os.path.basename(folder)
    __import__(__package__)

from . import FILES, LEVELS, REPORT, SHARED, VARIABLE, kernel, landlock
from .overlay import View, mount_proc, others_folders
from .processes import descendants
from .watch import Watch, filter_program

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_KEPT_CAPABILITIES = frozenset({0, 1, 3, 4})
"""Root's that stay: to change owners, to read what others may not, to act as a file's owner, and set-id bits."""
_SIOCSIFFLAGS, _IFF_UP_RUNNING = 0x8914, 0x41
_GRACE_SECONDS = 5.0
_PATH_MAX = 4096


def main() -> None:
    """Keep the program of the request."""
    request = json.loads(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, lambda *_: sys.exit(0))
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    try:
        _keep(request)
    finally:
        _end_children()
        _remove(request["scratch"])


def _keep(request: dict[str, Any]) -> None:
    scratch = request["scratch"]
    os.makedirs(f"{scratch}/{SHARED}/tmp", exist_ok=True)
    inner, outer = socket.socketpair()
    why = {}
    for level in [request["level"]] if request.get("level") else LEVELS:
        try:
            status = _start(request, level, inner)
            break
        except OSError as error:
            why[level] = f"{error.filename or 'it'}: {error.strerror or error}"
            _end_children()
    else:
        raise SystemExit(f"the program cannot be started apart from other files: {why}")
    inner.close()
    watch = Watch(f"{scratch}/{SHARED}", f"{scratch}/{FILES}", guards=level != "overlay")
    watched, code = False, None
    poll = select.poll()
    for file in (0, status, outer.fileno()):
        poll.register(file, select.POLLIN)
    while code is None:
        for file, _ in poll.poll():
            if file == 0 and not os.read(0, 1):
                return
            if file == outer.fileno():
                _, listeners, _, _ = socket.recv_fds(outer, 1, 1)
                poll.unregister(outer)
                if listeners:
                    watched = True
                    watch.answer_from(listeners[0])
            if file == status:
                code = int(os.read(status, 16) or b"-9")
    _end_children()
    report = {
        "level": level,
        "why": why,
        "code": code,
        "complete": watched and watch.is_complete,
        "paths": {path: [*seen] for path, seen in watch.paths.copy().items()},
        "addresses": sorted(watch.addresses),
    }
    with open(f"{scratch}/{REPORT}", "w", encoding="utf-8", errors="surrogateescape") as written:
        json.dump(report, written)
    nothing = os.open(os.devnull, os.O_RDWR)
    for output in (1, 2):
        os.dup2(nothing, output)  # ends what the other side reads
    while os.read(0, 1):
        pass


def _start(request: dict[str, Any], level: str, notifier: socket.socket) -> int:
    """Start the program; return what tells its exit code, negative for a signal.

    Raises:
        OSError: this kernel does not have the level.
    """
    status, told = os.pipe()
    ready, says_ready = os.pipe()
    mapped, says_mapped = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            os.close(ready)
            kernel.die_with_parent(signal.SIGKILL)
            if level == "overlay":
                _leave(request, says_ready, mapped)
            else:
                _require(level, request)
            program = os.fork()
            if program == 0:
                _begin(request, level, notifier, told, says_ready)
            os.close(says_ready)
            if level == "overlay":
                os.waitpid(program, 0)
            else:
                os.write(told, b"%d" % os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.write(says_ready, json.dumps([error.errno, f"{error}"]).encode())
        finally:
            os._exit(0)
    for file in (told, says_ready, mapped):
        os.close(file)
    said = os.read(ready, 4096)
    if said == b"map":
        _map_users(first)
        os.write(says_mapped, b"m")
        said = os.read(ready, 4096)
    os.close(says_mapped)
    os.close(ready)
    if said != b"go":
        os.close(status)
        number, text = json.loads(said or '[0, "it ended"]')
        raise OSError(number, text)
    return status


def _require(level: str, request: dict[str, Any]) -> None:
    if request.get("offline"):
        raise OSError("a program is offline only in a namespace of its own")
    if level == "landlock" and not landlock.version():
        raise OSError("there is no Landlock")


def _leave(request: dict[str, Any], says_ready: int, mapped: int) -> None:
    """Leave this machine's namespaces for a view of its own."""
    flags = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC
    kernel.unshare(flags | (kernel.CLONE_NEWNET if request.get("offline") else 0))
    os.write(says_ready, b"map")
    os.read(mapped, 1)
    if request.get("offline"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            fcntl.ioctl(one, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP_RUNNING))
    named = [request["folder"], "/var/tmp", *request["words"], *os.environ.values()]
    named += [word.partition("=")[2] for word in request["words"]]
    paths = [
        os.path.join(request["folder"], each) for each in named if each and "\0" not in each and len(each) < _PATH_MAX
    ]
    others = others_folders(paths) if os.geteuid() else []  # root's namespace knows all users
    View(request["scratch"], f"{request['scratch']}/{SHARED}", others).enter()


def _map_users(pid: int) -> None:
    """Give a process in a new user namespace the users that this one knows, or this user alone."""
    for kind, own in (("uid", os.geteuid()), ("gid", os.getegid())):
        with open(f"/proc/self/{kind}_map", encoding="ascii") as file:
            known = [line.split() for line in file]
        try:
            _write(f"/proc/{pid}/{kind}_map", "".join(f"{inside} {inside} {count}\n" for inside, _, count in known))
        except OSError:
            if kind == "gid":
                _write(f"/proc/{pid}/setgroups", "deny")
            _write(f"/proc/{pid}/{kind}_map", f"{own} {own} 1")


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY)  # in one call, as the kernel wants it
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _begin(request: dict[str, Any], level: str, notifier: socket.socket, told: int, says_ready: int) -> None:
    """Become the program; in a view of its own as a child of this process, which is the first of its namespace."""
    try:
        kernel.die_with_parent(signal.SIGKILL)
        if level == "overlay":
            mount_proc()
            program = os.fork()
            if program:
                _be_first(program, told)
            kernel.die_with_parent(signal.SIGKILL)
        os.chdir(request["folder"])
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)  # that of the view
        os.dup2(nothing, 0)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        notifier.set_inheritable(True)
        told_program = {"level": level, "socket": notifier.fileno(), "seccomp": _SECCOMP.get(platform.machine(), -1)}
        with contextlib.suppress(OSError):
            told_program["filter"] = filter_program(guards=level != "overlay").hex()
        environ = {**os.environ, "TMPDIR": f"{request['scratch']}/{SHARED}/tmp", VARIABLE: json.dumps(told_program)}
        with contextlib.suppress(OSError):  # not root's in its namespace
            kernel.drop_capabilities(_KEPT_CAPABILITIES if os.geteuid() == 0 else frozenset())
        kernel.gain_no_privileges()
        if level == "landlock":
            shared = f"{request['scratch']}/{SHARED}"
            devices = [each for each in ("/dev/null", "/dev/zero", "/dev/full", "/dev/shm") if os.path.exists(each)]
            landlock.allow_writes_below((shared, *devices))
        else:
            landlock.keep_to_itself()
        os.write(says_ready, b"go")
        os.execve(request["words"][0], request["words"], environ)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(says_ready, json.dumps([error.errno, f"{error}"]).encode())
        os._exit(127)


def _be_first(program: int, told: int) -> None:
    """Be the first process of a pid namespace: wait for all, and end with the program, and everything with it."""
    while True:
        pid, code = os.wait()
        if pid == program:
            os.write(told, b"%d" % os.waitstatus_to_exitcode(code))
            os._exit(0)


def _end_children() -> None:
    """End all that was started from here, also what has left its session or its parent."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < deadline:
        for child in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _remove(scratch: str) -> None:
    """Remove the scratch folder, closed folders of overlayfs in it as well; no link is followed."""
    for parent, names, _ in os.walk(scratch):
        for name in names:
            path = f"{parent}/{name}"
            with contextlib.suppress(OSError):
                mode = os.lstat(path).st_mode
                if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
                    os.chmod(path, stat.S_IRWXU)
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
