"""Lets a process and its children write to some folders only (Landlock, Linux 5.13), for good."""

import ctypes
import os

from .kernel import gain_no_privileges, syscall

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_WRITE_FILE, _TRUNCATE, _IOCTL = 1 << 1, 1 << 14, 1 << 15
_REFER = 1 << 13
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_SCOPES = 0b11
"""Abstract sockets and signals of processes outside (version 6)."""
_FIRST_WITH = {_REFER: 2, _TRUNCATE: 3, _IOCTL: 5}


def version() -> int:
    """Return the version of the kernel's interface; 0: there is none, or it is turned off."""
    try:
        return syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError:
        return 0


def allow_writes_below(folders: tuple[str, ...]) -> None:
    """Refuse from now on what would change a file outside of these folders, and signals to processes outside.

    Raises:
        OSError: this kernel has no Landlock.
    """
    found = version()
    if not found:
        raise OSError("no Landlock")
    rights = _WRITE_FILE | _REMOVE_AND_MAKE
    rights |= sum(right for right, first in _FIRST_WITH.items() if found >= first)
    _restrict(rights, folders, found)


def keep_to_itself() -> None:
    """Refuse from now on signals and abstract sockets of processes outside, where the kernel can (version 6)."""
    found = version()
    if found >= 6:
        _restrict(0, (), found)


def _restrict(rights: int, folders: tuple[str, ...], found: int) -> None:
    attributes = (ctypes.c_uint64 * 3)(rights, 0, _SCOPES if found >= 6 else 0)
    size = ctypes.c_size_t(24 if found >= 6 else 8)
    ruleset = syscall(_CREATE, ctypes.byref(attributes), size, ctypes.c_uint32(0))
    try:
        for folder in folders:
            opened = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            try:
                allowed = rights if os.path.isdir(folder) else rights & (_WRITE_FILE | _TRUNCATE | _IOCTL)
                rule = allowed.to_bytes(8, "little") + opened.to_bytes(4, "little")  # packed
                words = ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH)
                syscall(_ADD_RULE, *words, ctypes.create_string_buffer(rule), ctypes.c_uint32(0))
            finally:
                os.close(opened)
        gain_no_privileges()
        syscall(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
