"""Has the kernel tell what a program and its children look for, read, list and connect to (seccomp's notifications).

The program installs the filter (``calls.py``) itself, by ``worker/rehearsal/watched.py``; its notifications come here,
those of native code and of children as well. Where the program has no view of its own (``overlay.py``), what would
change a file outside of its folder is refused here, too. The path is looked at before the kernel reads it, which a
program that wants to deceive could use; Landlock refuses most of the same for good.
"""

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import stat
import struct
import threading

from .calls import BIND, CHANGES, CONNECT, NONE, SEND_MANY, SEND_TO, calls_on_processes, calls_with_paths
from .removal import descendants, remove
from .seen import EXISTS, LISTED, MAX_PATHS, USED, signature

_SECOND_PATHS = {"rename": (-1, 1), "renameat": (2, 3), "renameat2": (2, 3), "link": (-1, 1), "linkat": (2, 3)}
_ENTRIES = ("mkdir", "rmdir", "unlink", "rename", "symlink", "mknod")
"""What changes an entry of a folder, and follows no link there."""
_MESSAGE, _MOST_MESSAGES = struct.Struct("QI52x"), 1024
"""``struct mmsghdr``, which begins with ``struct msghdr``: address and its size; and as many as one call sends."""
_AT_FDCWD = (1 << 32) - 100
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PROCESS_KINDS = {141: 0, 140: 0, 251: 1, 30: 1}
"""The kind that means one process, of the last two."""
_RECEIVE, _SEND, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082104
_CONTINUE = 1
_REQUEST = struct.Struct("QIIiIQ6Q")
_RESPONSE = struct.Struct("QqiI")
_PATH_MAX, _PAGE = 4096, 4096
_MAX_OPEN, _MAX_LINKS = 64, 40
_KERNEL = ("/proc/", "/sys/", "/dev/")
"""What is there depends on the machine and its state, and is not compared; but for shared memory, which has files."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_SHARED_MEMORY = "/dev/shm/"
_NAME_SERVICE = 53


class Watch:
    """Answers the kernel's notifications, and keeps what they tell.

    Args:
        own: folder that the program may change; what is in it is no part of the answer.
        files: folder in it below which a program without a view of its own has its files: ``files/etc/hosts``.
        guards: refuse changes elsewhere.
    """

    def __init__(self, own: str, files: str, *, guards: bool) -> None:
        self.paths: dict[str, tuple[int, str]] = {}
        """How each path was used, and what stood there outside of the program's view."""
        self.addresses: set[str] = set()
        """Addresses beyond this machine that were connected to."""
        self._is_complete = False
        self._own, self._files = f"{own}/", f"{files}/"
        self._guards = guards
        self._memory: dict[int, int] = {}
        self._shared = set(os.listdir(_SHARED_MEMORY)) if guards and os.path.isdir(_SHARED_MEMORY) else set()
        self._shared_made: set[str] = set()
        self._calls: dict[int, tuple[str, int, int]] = {}
        self._on_processes: dict[int, int] = {}
        self._folders: dict[str, str] = {}
        self._renames = False
        """The program has made links, or given files other names: a path may lead elsewhere than outside."""

    def remove_shared_memory(self) -> None:
        """Remove what the program has left in shared memory, where that is the machine's."""
        for name in self._shared_made:
            path = f"{_SHARED_MEMORY}{name}"
            if name not in self._shared:
                with contextlib.suppress(OSError):
                    (remove if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)

    def told(self) -> dict[str, object]:
        """Return what was told: whether that is all, how each path was used, and addresses beyond this machine."""
        return {
            "watched": bool(self._calls),
            "complete": self._is_complete,
            "paths": {**self.paths},
            "addresses": sorted(self.addresses),
        }

    def answer_from(self, listener: int) -> None:
        """Answer a listener's notifications on a thread of its own, until the program ends."""
        self._is_complete = True
        self._calls, self._on_processes = calls_with_paths(), calls_on_processes()
        threading.Thread(target=self._answer, args=(listener,), daemon=True).start()

    def _answer(self, listener: int) -> None:
        with contextlib.suppress(OSError):  # Linux 6.6: the program goes on where it was waiting
            fcntl.ioctl(listener, _SET_FLAGS, 1)
        empty, buffer = bytes(_REQUEST.size), bytearray(_REQUEST.size)
        while True:
            buffer[:] = empty
            try:
                fcntl.ioctl(listener, _RECEIVE, buffer)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno == errno.ENOENT:  # who asked has ended
                    if not self._has_callers(listener):
                        return
                    continue
                return
            identity, pid, _, number, _, _, *arguments = _REQUEST.unpack(buffer)
            try:
                refused = self._look(pid, number, arguments)
            except Exception:  # noqa: BLE001 - the program waits for an answer, whatever happens here
                self._is_complete = False
                refused = errno.EACCES if self._guards and self._changes(number, arguments) else 0
            with contextlib.suppress(OSError):  # who asked has ended
                fcntl.ioctl(listener, _SEND, _RESPONSE.pack(identity, 0, -refused, 0 if refused else _CONTINUE))

    @staticmethod
    def _has_callers(listener: int) -> bool:
        import select

        poll = select.poll()
        poll.register(listener, 0)
        return not any(events & select.POLLHUP for _, events in poll.poll(0))

    def _changes(self, number: int, arguments: list[int]) -> bool:
        """Return True if a call may change something, as far as can be told without its path."""
        name = self._calls[number][0] if number in self._calls else "openat2"  # what else is told changes something
        flags = 0 if name == "openat2" else self._flags(0, name, arguments)
        return name in CHANGES or name == "openat2" or bool(flags & _WRITES)

    def _look(self, pid: int, number: int, arguments: list[int]) -> int:
        """Note a call; return the error with which it is refused, or 0."""
        if number in self._on_processes:
            return self._may_touch(number, arguments)
        if number not in self._calls:
            return self._sends(pid, number, arguments)
        name, folder, at = self._calls[number]
        path = self._path(pid, arguments, folder, at)
        if path is None:
            return 0
        if name in CHANGES:
            return self._look_at_change(pid, name, path, arguments)
        if name.startswith("exec"):
            self._forget(pid)  # it gets another memory
            interpreter = _interpreter(f"/proc/{pid}/root{path}")
            if interpreter:
                self._note(pid, interpreter, USED)
        flags = self._flags(pid, name, arguments)
        if not name.startswith("readlink") or not path.startswith(self._files):  # it asks whether a file is real
            self._note(pid, path, _use(name, flags))
        if not self._guards or path in _DEVICES:
            return 0
        changes = flags & _WRITES or (name.startswith("open") and _acts_when_opened(path))
        return errno.EACCES if changes and not self._may_change(path) else 0

    def _look_at_change(self, pid: int, name: str, path: str, arguments: list[int]) -> int:
        """Note a call that changes what stands at a path; return the error with which it is refused, or 0."""
        second = _SECOND_PATHS.get(name)
        paths = [path, self._path(pid, arguments, *second)] if second else [path]
        for each, use in zip(paths, (USED if second else EXISTS, EXISTS), strict=False):
            if each is not None and not each.startswith(self._files):  # else the program's Python has looked before
                self._note(pid, each, use)
        if second or name.startswith("sym"):
            self._renames = True
            if name.startswith("rename") and not f"{path}/".startswith(self._own) and os.path.isdir(path):
                self._is_complete = False  # what is read below its new name is not compared
        if not self._guards:
            return 0
        may = self._may_enter if name.startswith(_ENTRIES) else self._may_change
        return 0 if all(each is None or may(each) for each in paths) else errno.EACCES

    def _flags(self, pid: int, name: str, arguments: list[int]) -> int:
        if name == "openat2":
            return int(struct.unpack("Q", self._read(pid, arguments[2], 8, whole=True))[0])
        if name == "creat":
            return os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        return arguments[{"open": 1, "openat": 2}[name]] & 0xFFFFFFFF if name.startswith("open") else 0

    def _path(self, pid: int, arguments: list[int], folder: int, at: int) -> str | None:
        """Return the absolute path that a call names; None: it names none."""
        descriptor = arguments[folder] & 0xFFFFFFFF if folder != NONE else _AT_FDCWD
        text = ""
        if at != NONE and arguments[at]:
            text = os.fsdecode(self._read(pid, arguments[at], _PATH_MAX).partition(b"\0")[0])
        if at != NONE and not text and descriptor == _AT_FDCWD:
            return None
        if not text.startswith("/"):
            place = "cwd" if descriptor == _AT_FDCWD else f"fd/{descriptor}"
            base = os.readlink(f"/proc/{pid}/{place}")
            if not base.startswith("/"):  # a pipe or a socket
                return None
            text = f"{base}/{text}" if text else base
        for own in ("/proc/self", "/proc/thread-self"):
            if text == own or text.startswith(f"{own}/"):
                text = f"/proc/{pid}{text[len(own) :]}"
        if text.startswith("/dev/fd/"):
            text = f"/proc/{pid}/fd/{text[8:]}"
        if text.startswith("/proc/"):
            text = self._through_proc(pid, text)
        return text if text.startswith("/") else None

    @staticmethod
    def _through_proc(pid: int, path: str) -> str:
        """Return a path behind the links of one of the program's processes (``/proc/PID/cwd/x``)."""
        parts = path.split("/")
        is_own = parts[2] == f"{pid}" or (parts[2].isdecimal() and int(parts[2]) in descendants(os.getpid()))
        if is_own and len(parts) > 3 and parts[3] in ("cwd", "root", "fd"):
            at = 5 if parts[3] == "fd" else 4
            link = "/".join(parts[:at])
            with contextlib.suppress(OSError):
                return "/".join([os.readlink(link), *parts[at:]])
        return path

    def _note(self, pid: int, path: str, use: int) -> None:
        if self._renames:
            leads = _resolved_by(pid, path)
            if leads != path:
                self._note_path(leads, use)
        self._note_path(path, use)

    def _note_path(self, path: str, use: int) -> None:
        if ".." not in path:  # else a link on the way would decide
            path = os.path.normpath(path)
        if path.startswith(self._files):
            path = path[len(self._files) - 1 :]
        if ".." not in path and f"{path}/".startswith((self._own, *_KERNEL)) and not path.startswith(_SHARED_MEMORY):
            return
        if "/__pycache__/" in path and path.endswith(".pyc"):
            return
        before = self.paths.get(path)
        if before is not None and before[0] >= use:
            return
        if len(self.paths) >= MAX_PATHS:
            self._is_complete = False
            return
        self.paths[path] = (use, signature(path, use, self._folders))

    def _may_enter(self, path: str) -> bool:
        """Return True if the program may add, rename or remove this entry: the folder that holds it is its own."""
        parent, name = os.path.split(path)
        return self._is_own(os.path.join(os.path.realpath(parent), name))

    def _may_change(self, path: str) -> bool:
        """Return True if a path is the program's own to change, and what it leads to."""
        return self._may_enter(path) and self._is_own(os.path.realpath(path))

    def _is_own(self, path: str) -> bool:
        if f"{path}/".startswith(self._own):
            return True
        name = path[len(_SHARED_MEMORY) :].partition("/")[0] if path.startswith(_SHARED_MEMORY) else ""
        if not name or name in self._shared:
            return False
        self._shared_made.add(name)
        return True

    def _may_touch(self, number: int, arguments: list[int]) -> int:
        """Refuse a signal, a limit or a priority for a process that the keeper has not started, or for many."""
        at = self._on_processes[number]
        if at and arguments[0] != _PROCESS_KINDS[number]:
            return errno.EPERM
        pid = arguments[at] & 0xFFFFFFFF
        pid = pid - (1 << 32) if pid & (1 << 31) else pid  # a group of processes is negative
        return 0 if pid == 0 or abs(pid) in descendants(os.getpid()) else errno.EPERM

    def _sends(self, pid: int, number: int, arguments: list[int]) -> int:
        """Note where a socket connects or sends to; the address of a message is in its header."""
        if number in (*CONNECT, *BIND):
            found = [(arguments[1], arguments[2])]
        elif number in SEND_TO:
            found = [(arguments[4], arguments[5])]
        else:
            count = arguments[2] & 0xFFFFFFFF if number in SEND_MANY else 1
            headers = self._read(pid, arguments[1], min(count, _MOST_MESSAGES) * _MESSAGE.size, whole=True)
            found = list(_MESSAGE.iter_unpack(headers[: len(headers) // _MESSAGE.size * _MESSAGE.size]))
        for address, size in found:
            told = self._read(pid, address, min(size, 128), whole=True) if address else b""
            refused = self._connects(pid, told, binds=number in BIND)
            if refused:
                return refused
        return 0

    def _connects(self, pid: int, address: bytes, *, binds: bool) -> int:
        family = struct.unpack_from("H", address)[0] if len(address) >= 2 else 0
        if family == socket.AF_UNIX:
            path = os.fsdecode(address[2:].partition(b"\0")[0])
            if not self._guards or not path:
                return 0
            full = path if path.startswith("/") else f"{os.readlink(f'/proc/{pid}/cwd')}/{path}"
            return 0 if os.path.realpath(full).startswith(self._own) else errno.ECONNREFUSED
        if family in (socket.AF_INET, socket.AF_INET6) and not binds:
            port = struct.unpack_from("!H", address, 2)[0]
            packed = address[4:8] if family == socket.AF_INET else address[8:24]
            found = ipaddress.ip_address(packed)
            found = getattr(found, "ipv4_mapped", None) or found
            if port != _NAME_SERVICE and not (found.is_loopback and _listens(pid, port)):
                self.addresses.add(f"{found}:{port}")
        return 0

    def _read(self, pid: int, address: int, size: int, *, whole: bool = False) -> bytes:
        """Read up to ``size`` bytes of a process's memory, or up to a zero byte."""
        first = min(size, 256, _PAGE - address % _PAGE)
        data = os.pread(self._opened(pid), first, address)
        if not data:  # of a process that has ended, whose number another has now
            self._forget(pid)
            data = os.pread(self._opened(pid), first, address)
        file = self._opened(pid)
        while len(data) < size and (whole or b"\0" not in data):
            more = os.pread(file, min(size - len(data), _PAGE), address + len(data))
            if not more:
                break
            data += more
        return data

    def _opened(self, pid: int) -> int:
        if pid not in self._memory:
            if len(self._memory) > _MAX_OPEN:
                self._forget(*self._memory)
            self._memory[pid] = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        return self._memory[pid]

    def _forget(self, *pids: int) -> None:
        for pid in pids:
            file = self._memory.pop(pid, None)
            if file is not None:
                os.close(file)


def _use(name: str, flags: int) -> int:
    if not name.startswith(("open", "creat")) or flags & os.O_PATH:
        return USED
    return EXISTS if flags & os.O_ACCMODE == os.O_WRONLY else LISTED  # a log that a run appends to is not read


def _resolved_by(pid: int, path: str) -> str:
    """Return where a path leads in a process's own view, through the links that it has made."""
    at, rest, links = "", [part for part in reversed(path.split("/")) if part], 0
    while rest:
        part = rest.pop()
        if part == "..":
            at = os.path.dirname(at)
        elif part != ".":
            try:
                target = os.readlink(f"/proc/{pid}/root{at}/{part}")
            except OSError:
                at = f"{at}/{part}"
                continue
            links += 1
            if links > _MAX_LINKS:
                return path
            at = "" if target.startswith("/") else at
            rest += [each for each in reversed(target.split("/")) if each]
    return at or "/"


def _interpreter(path: str) -> str | None:
    """Return the program that the kernel starts for a script (``#!``), which no call names."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        start = os.read(file, 256) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    except OSError:
        return None
    finally:
        os.close(file)
    words = os.fsdecode(start[2:].partition(b"\n")[0]).split() if start.startswith(b"#!") else []
    return words[0] if words and words[0].startswith("/") else None


def _acts_when_opened(path: str) -> bool:
    """Return True for pipes and devices, which may do something when they are opened or read."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def _listens(pid: int, port: int) -> bool:
    """Return True if a process that the keeper has started listens at a port of this machine."""
    sockets = set()
    for version in ("tcp", "tcp6", "udp", "udp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{version}", encoding="ascii") as table:
            rows = [line.split() for line in table]
            sockets |= {f"socket:[{row[9]}]" for row in rows[1:] if int(row[1].rpartition(":")[2], 16) == port}
    for process in descendants(os.getpid()):
        with contextlib.suppress(OSError), os.scandir(f"/proc/{process}/fd") as files:
            for file in files:
                with contextlib.suppress(OSError):
                    if os.readlink(file.path) in sockets:
                        return True
    return False
