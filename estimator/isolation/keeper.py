"""Keeper of one program: starts it apart from what is real, watches it, and leaves nothing behind.

Arguments: the scratch folder, which the keeper removes; the program's folder; one of ``LEVELS``, or nothing for the
first that this kernel has; ``offline`` or nothing; the program's words. Standard output and error are the program's.
When it has ended with all its children, ``report.json`` is in the scratch folder, and only then does the output end.
The scratch folder is removed when standard input ends; if that ends earlier, so does the program: whoever waits for the
answer has gone, however that happened.

A rehearsal waits for what is imported here before the program starts; what is needed later is imported later.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal
import socket
import sys

from . import kernel
from .overlay import View, mount_proc, others_folders
from .protocol import FILES, LEVELS, REPORT, SHARED, VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from .watch import Watch

_ENDINGS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_KEPT_CAPABILITIES = frozenset({0, 1, 3, 4})
"""Root's that stay: to change owners, to read what others may not, to act as a file's owner, and set-id bits."""
_SIOCSIFFLAGS, _IFF_UP_RUNNING = 0x8914, 0x41
_GRACE_SECONDS = 5.0
_PATH_MAX = 4096
_HIGH_DESCRIPTOR = 900
"""Number of the socket to the keeper, which is not checked: sockets that the program opens get lower numbers."""


class Kept:
    """The program that is kept, and where."""

    def __init__(self, words: list[str]) -> None:
        self.scratch, self.folder, self.level, offline, *self.words = words
        self.is_offline = offline == "offline"
        self.shared = f"{self.scratch}/{SHARED}"
        self.temporary = f"{self.shared}/tmp"


def main() -> None:
    """Keep the program of the command line."""
    kept = Kept(sys.argv[1:])
    for number in _ENDINGS:
        signal.signal(number, lambda *_: sys.exit(0))
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    try:
        _keep(kept)
    finally:
        _end_children()
        from .removal import remove

        remove(kept.scratch)


def _keep(kept: Kept) -> None:
    os.makedirs(kept.temporary, exist_ok=True)
    inner, outer = socket.socketpair()
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1
    notifier = fcntl.fcntl(inner.fileno(), fcntl.F_DUPFD_CLOEXEC, min(_HIGH_DESCRIPTOR, highest))
    inner.close()
    inner = socket.socket(fileno=notifier)
    level, status, why = _first_level(kept, inner)
    inner.close()

    import json

    from .calls import instructions
    from .watch import Watch

    guards = level != "overlay"
    watch = Watch(kept.shared, f"{kept.scratch}/{FILES}", guards=guards)
    with contextlib.suppress(OSError):  # the program has ended already, or this machine's system calls are not known
        outer.send(instructions(guards=guards, told_by=notifier))
    code = _wait(status, outer, watch)
    if code is None:
        return
    _end_children()
    watch.remove_shared_memory()
    report = {"level": level, "why": why, "code": code, **watch.told()}
    if kept.is_offline:  # what it connected to cannot have answered
        report["addresses"] = []
    with open(f"{kept.scratch}/{REPORT}", "w", encoding="utf-8", errors="surrogateescape") as written:
        json.dump(report, written)
    nothing = os.open(os.devnull, os.O_RDWR)
    for output in (1, 2):
        os.dup2(nothing, output)  # ends what the other side reads
    while os.read(0, 1):
        pass


def _first_level(kept: Kept, notifier: socket.socket) -> tuple[str, int, dict[str, str]]:
    """Start the program; return its level, what tells its exit code, and why it is none of the better levels."""
    why: dict[str, str] = {}
    for level in [kept.level] if kept.level else LEVELS:
        try:
            return level, _start(kept, level, notifier), why
        except OSError as error:
            why[level] = error.strerror or f"{error}"
            _end_children()
    raise SystemExit(f"the program cannot be started: {'; '.join(why.values())}")


def _wait(status: int, program: socket.socket, watch: Watch) -> int | None:
    """Wait for the program's end; return its exit code, or None: nobody waits for it any more."""
    poll = select.poll()
    for file in (0, status, program.fileno()):
        poll.register(file, select.POLLIN)
    while True:
        for file, _ in poll.poll():
            if file == 0 and not os.read(0, 1):
                return None
            if file == program.fileno():
                _, listeners, _, _ = socket.recv_fds(program, 1, 1)  # none, if the kernel refused the filter
                poll.unregister(program)
                for listener in listeners:
                    watch.answer_from(listener)
            if file == status:
                return int(os.read(status, 16) or b"-9")


def _start(kept: Kept, level: str, notifier: socket.socket) -> int:
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
            os.close(says_mapped)
            kernel.die_with_parent(signal.SIGKILL)
            if level == "overlay":
                _leave(kept, says_ready, mapped)
            elif kept.is_offline:
                raise OSError("a program is offline only in a namespace of its own")  # noqa: TRY301 - said below
            program = os.fork()
            if program == 0:
                _begin(kept, level, notifier, told, says_ready)
            os.close(says_ready)
            _, code = os.waitpid(program, 0)
            if level != "overlay":
                os.write(told, b"%d" % os.waitstatus_to_exitcode(code))
        except OSError as error:
            _say(says_ready, error)
        finally:
            os._exit(0)
    for file in (told, says_ready, mapped):
        os.close(file)
    said = os.read(ready, _PATH_MAX)
    if said == b"map":
        _map_users(first)
        os.write(says_mapped, b"m")
        said = os.read(ready, _PATH_MAX)
    os.close(says_mapped)
    os.close(ready)
    if said != b"go":
        os.close(status)
        raise OSError(said.decode(errors="replace") or "its first process was ended")
    return status


def _say(says_ready: int, error: OSError) -> None:
    where = f"{error.filename}: " if error.filename else ""
    os.write(says_ready, f"{where}{error.strerror or error}".encode(errors="replace"))


def _leave(kept: Kept, says_ready: int, mapped: int) -> None:
    """Leave this machine's namespaces for a view of its own."""
    flags = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC
    kernel.unshare(flags | (kernel.CLONE_NEWNET if kept.is_offline else 0))
    os.write(says_ready, b"map")
    os.read(mapped, 1)
    if kept.is_offline:
        import struct

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            fcntl.ioctl(one, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP_RUNNING))
    View(kept.scratch, kept.shared, _others(kept) if os.geteuid() else []).enter()  # root's namespace knows all users


def _others(kept: Kept) -> list[str]:
    named = [kept.folder, "/var/tmp", *kept.words, *os.environ.values()]
    named += [word.partition("=")[2] for word in kept.words]
    return others_folders([os.path.join(kept.folder, each) for each in named if each and len(each) < _PATH_MAX])


def _map_users(pid: int) -> None:
    """Map all known users, or else this user alone, into the new user namespace of a process."""
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


def _begin(kept: Kept, level: str, notifier: socket.socket, told: int, says_ready: int) -> NoReturn:
    """Become the program; in a view of its own as a child of this process, which is the first of its namespace."""
    try:
        kernel.die_with_parent(signal.SIGKILL)
        if level == "overlay":
            mount_proc()
            program = os.fork()
            if program:
                os.close(says_ready)
                while True:  # the first process of a pid namespace waits for all, and ends with the program
                    pid, code = os.wait()
                    if pid == program:
                        os.write(told, b"%d" % os.waitstatus_to_exitcode(code))
                        os._exit(0)
            kernel.die_with_parent(signal.SIGKILL)
        os.chdir(kept.folder)
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))  # 0 would let a program of core_pattern's write one
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)  # that of the view
        for number in (signal.SIGPIPE, signal.SIGXFSZ, *_ENDINGS):
            signal.signal(number, signal.SIG_DFL)
        notifier.set_inheritable(True)
        environ = {**os.environ, "TMPDIR": kept.temporary, VARIABLE: f"{level} {notifier.fileno()}"}
        try:
            kernel.drop_capabilities(_KEPT_CAPABILITIES if os.geteuid() == 0 else frozenset())
        except OSError:  # it has none
            pass
        kernel.gain_no_privileges()
        kernel.leave_keyring()
        _restrict(kept, level)
        os.write(says_ready, b"go")
        os.execve(kept.words[0], kept.words, environ)
    except OSError as error:
        _say(says_ready, error)
    os._exit(127)


def _restrict(kept: Kept, level: str) -> None:
    """Restrict this process by Landlock: no signals to other processes and, without a view, no writes to real files."""
    from . import landlock

    if level == "landlock":
        devices = [each for each in ("/dev/null", "/dev/zero", "/dev/full", "/dev/shm") if os.path.exists(each)]
        landlock.allow_writes_below((kept.shared, *devices))
    else:
        landlock.keep_to_itself()


def _end_children() -> None:
    """End all that was started from here, also what has left its session or its parent."""
    import time

    from .removal import descendants

    deadline = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < deadline:
        for child in descendants(os.getpid()):
            try:
                os.kill(child, signal.SIGKILL)
            except OSError:  # it has ended
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)
