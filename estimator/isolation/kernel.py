"""System calls of Linux that Python has no functions for, by way of the C library."""

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_NEWIPC = 0x08000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_MOUNT_SETATTR, _AT_RECURSIVE, _AT_FDCWD, _MOUNT_ATTR_RDONLY = 442, 0x8000, -100, 1
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_KEYCTL, _JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}, 1
_IOPRIO_SET, _ONE_PROCESS, _WHEN_IDLE = {"x86_64": 251, "aarch64": 30}, 1, 3 << 13
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38
PR_SET_CHILD_SUBREAPER = 36
_LAST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def syscall(number: int, *arguments: object) -> int:
    """Call the kernel.

    Raises:
        OSError: it refuses.
    """
    return _checked(_libc.syscall(number, *arguments), f"system call {number}")


def prctl(option: int, *arguments: int) -> int:
    """Call ``prctl``.

    Raises:
        OSError: the kernel refuses.
    """
    words = (*map(ctypes.c_ulong, (*arguments, 0, 0, 0, 0)[:4]),)
    return _checked(_libc.prctl(option, *words), "prctl")


def unshare(flags: int) -> None:
    """Leave the namespaces of ``flags`` for new ones.

    Raises:
        OSError: the kernel, a container's seccomp profile or AppArmor refuses.
    """
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    """Mount a file system.

    Raises:
        OSError: the kernel refuses.
    """
    words = [None if each is None else os.fsencode(each) for each in (source, target, kind, options)]
    _checked(_libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]), target)


def make_read_only(path: str) -> None:
    """Make a mount and all mounts below it read-only (Linux 5.12).

    Raises:
        OSError: the kernel refuses.
    """
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    flags = ctypes.c_uint(_AT_RECURSIVE)
    syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, ctypes.byref(attributes), ctypes.c_size_t(32))


def change_root(root: str) -> None:
    """Make a mounted folder the root of this process; nothing of the old root stays reachable.

    Raises:
        OSError: the kernel refuses.
    """
    os.chdir(root)
    syscall(_PIVOT_ROOT[os.uname().machine], b".", b".")  # the old root is then mounted over the new one
    _checked(_libc.umount2(b".", _MNT_DETACH), "umount2")
    os.chdir("/")


def die_with_parent(signal: int) -> None:
    """Have the kernel send a signal when the thread that started this process ends."""
    prctl(_PR_SET_PDEATHSIG, signal)


def gain_no_privileges() -> None:
    """Let no program that is started from here on gain privileges by a set-uid bit or file capabilities."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def leave_keyring() -> None:
    """Have an own session keyring instead of the login's, where there are keyrings."""
    try:
        syscall(_KEYCTL[os.uname().machine], ctypes.c_int(_JOIN_SESSION_KEYRING), None)
    except OSError:
        pass


def use_disks_when_idle(pid: int) -> None:
    """Let a process, and those that it starts from now on, wait for the disks while others use them, where known.

    Raises:
        OSError: there is no such process.
    """
    if number := _IOPRIO_SET.get(os.uname().machine):
        syscall(number, _ONE_PROCESS, pid, _WHEN_IDLE)


def drop_capabilities(kept: frozenset[int]) -> None:
    """Drop capabilities of the programs that are started from here on, but for those kept."""
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in kept:
            try:
                prctl(_PR_CAPBSET_DROP, capability)
            except OSError:  # this kernel knows fewer
                return
