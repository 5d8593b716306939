"""Gives one program its own copy-on-write view of this machine's files; the real files never change.

Everything that is written goes to an upper folder of overlayfs, whoever writes it. In a user namespace the kernel
makes no overlay of a folder with other mounts below, since these are locked: such a folder is made anew on a tmpfs,
and each of its entries gets an overlay. A file system that cannot be a lower layer (some FUSE, autofs) is read-only.
``/dev`` has only harmless devices; ``/proc`` and ``/sys`` are read-only. Nobody answers at a socket of the file
system below an overlay.
"""

import os
import stat
from collections.abc import Callable

from .kernel import MS_BIND, MS_NODEV, MS_NOSUID, MS_PRIVATE, MS_REC, change_root, make_read_only, mount

TYPE_CHECKING = False

_DEVICES = ("null", "zero", "full", "random", "urandom")
_KERNEL = ("/dev", "/proc", "/sys")
_MAX_OVERLAYS = 1000
_MAX_COPIED_BYTES = 1 << 20
"""Files beside other mounts are copied up to this size, so that the program may change them; others are read-only."""
_SMALL_TMPFS = "mode=755,size=25%"


class View:
    """Builds the view and enters it; in a mount namespace of its own.

    Args:
        scratch: folder with room for what the program writes; it gets ``root`` and ``upper``.
        shared: folder in it that the program really may change, under the same path.
        others: folders that the program may write to and that are another user's: where only one user is known in the
            namespace, overlayfs cannot copy such a folder up (``EOVERFLOW``), unless an overlay begins there.
    """

    def __init__(self, scratch: str, shared: str, others: list[str]) -> None:
        self._others = others
        self._root, self._upper, self._shared = f"{scratch}/root", f"{scratch}/upper", shared
        self._overlays = 0
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            self._mounts = {_unescaped(line.split()[4]) for line in file}
        self._parents = {each[:at] or "/" for each in self._mounts for at, letter in enumerate(each) if letter == "/"}

    def enter(self) -> None:
        """Build the view and make it this process's root; ``/proc`` is mounted by ``mount_proc``, later.

        Raises:
            OSError: the kernel allows no mounts, or no overlays.
        """
        # A user namespace below this one could mount control groups anew, which end processes outside.
        with open("/proc/sys/user/max_user_namespaces", "w", encoding="ascii") as limit:
            limit.write("0")
        mount("", "/", None, MS_REC | MS_PRIVATE)
        for folder in (self._root, self._upper):
            os.mkdir(folder)
        try:
            self._overlay(self._root, self._root)
        except OSError:  # the file system of the scratch folder can hold no upper folders (overlayfs, NFS): memory can
            mount("tmpfs", self._upper, "tmpfs", MS_NOSUID | MS_NODEV, "mode=700")
            self._overlay(self._root, self._root)
        mount("tmpfs", self._root, "tmpfs", MS_NOSUID | MS_NODEV, _SMALL_TMPFS)
        self._add_folder("/")
        for path in self._others:
            if path not in self._parents:
                _try(self._overlay, path, f"{self._root}{path}")
        self._add_devices()
        for name in ("/proc", "/sys"):
            self._add_read_only(name)
        os.makedirs(f"{self._root}{self._shared}", exist_ok=True)
        mount(self._shared, f"{self._root}{self._shared}", None, MS_BIND)
        change_root(self._root)

    def _overlay(self, lower: str, target: str) -> None:
        self._overlays += 1
        if self._overlays > _MAX_OVERLAYS:
            raise OSError(f"more than {_MAX_OVERLAYS} overlays")
        found = os.stat(lower)
        folders = [f"{self._upper}/{self._overlays}{kind}" for kind in ("", "w")]
        for folder in folders:
            os.mkdir(folder)
        os.chmod(folders[0], stat.S_IMODE(found.st_mode))
        opened = os.open(lower, os.O_PATH)  # a path of its own would have to be escaped
        try:
            options = f"userxattr,lowerdir=/proc/self/fd/{opened},upperdir={folders[0]},workdir={folders[1]}"
            mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options)
        finally:
            os.close(opened)

    def _add(self, path: str) -> None:
        found = os.lstat(path)
        target = f"{self._root}{path}"
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(path), target)
        elif stat.S_ISDIR(found.st_mode):
            os.mkdir(target, stat.S_IMODE(found.st_mode))
            if path not in _KERNEL:
                self._add_folder(path)
        elif stat.S_ISREG(found.st_mode) and path not in self._mounts and found.st_size <= _MAX_COPIED_BYTES:
            _copy(path, target, found)
        elif stat.S_ISREG(found.st_mode):
            _make_file(target)
            mount(path, target, None, MS_BIND)
            make_read_only(target)

    def _add_folder(self, path: str) -> None:
        if path not in self._parents:
            try:
                self._overlay(path, f"{self._root}{path}")
            except OSError:
                self._add_read_only(path)
            return
        try:
            names = os.listdir(path)
        except OSError:
            return
        if len(names) > _MAX_OVERLAYS - self._overlays:
            self._add_read_only(path)
            return
        for name in names:
            _try(self._add, f"{path.rstrip('/')}/{name}")  # it may not be seen, or have gone

    def _add_read_only(self, path: str) -> None:
        target = f"{self._root}{path}"
        mount(path, target, None, MS_BIND | MS_REC)
        make_read_only(target)

    def _add_devices(self) -> None:
        folder = f"{self._root}/dev"
        os.makedirs(folder, exist_ok=True)
        mount("tmpfs", folder, "tmpfs", MS_NOSUID, "mode=755,size=1m")
        for name in _DEVICES:
            _make_file(f"{folder}/{name}")
            mount(f"/dev/{name}", f"{folder}/{name}", None, MS_BIND)
            make_read_only(f"{folder}/{name}")  # writing to it is no change of it; its mode is
        os.mkdir(f"{folder}/pts")
        _try(mount, "devpts", f"{folder}/pts", "devpts", MS_NOSUID, "newinstance,ptmxmode=0666")  # it does without
        self._add_shared_memory(f"{folder}/shm")
        for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
                             ("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx")):  # fmt: skip
            os.symlink(target, f"{folder}/{name}")

    def _add_shared_memory(self, target: str) -> None:
        """Let the program see what is staged in shared memory; what it adds is in memory as well."""
        memory, disk = f"{self._upper}/memory", self._upper
        for folder in (target, memory):
            os.mkdir(folder)
        mount("tmpfs", memory, "tmpfs", MS_NOSUID | MS_NODEV, "mode=700")
        self._upper = memory
        if not _try(self._overlay, "/dev/shm", target):
            mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
        self._upper = disk


def others_folders(named: list[str]) -> list[str]:
    """Return the folders on the way to paths that are another user's, and that this user may write to.

    Args:
        named: paths that the program may use: of its arguments and variables.
    """
    found: dict[str, None] = {}
    for path in named:
        at = os.path.realpath(path)
        while at != "/":
            if os.path.isdir(at) and os.access(at, os.W_OK) and os.stat(at).st_uid != os.geteuid():
                found[at] = None
            at = os.path.dirname(at)
    return sorted(found, key=lambda each: each.count("/"))


def mount_proc() -> None:
    """Mount the ``/proc`` of this process's own pid namespace over the old one, where the kernel allows it."""
    if _try(mount, "proc", "/proc", "proc", MS_NOSUID | MS_NODEV):  # not in a container that hides parts of its own
        make_read_only("/proc")


def _try(call: "Callable[..., object]", *arguments: object) -> bool:
    """Make a call to the kernel; return False if it is refused."""
    try:
        call(*arguments)
    except OSError:
        return False
    return True


def _make_file(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))


def _copy(path: str, target: str, found: os.stat_result) -> None:
    with open(path, "rb") as source, open(target, "xb") as copy:
        copy.write(source.read(_MAX_COPIED_BYTES))
    os.chmod(target, stat.S_IMODE(found.st_mode))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _unescaped(path: str) -> str:
    """Return a path of mountinfo, where spaces and the like are octal."""
    for code in ("040", "011", "012", "134"):
        path = path.replace(f"\\{code}", chr(int(code, 8)))
    return path
