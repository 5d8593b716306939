"""Has the kernel tell this program's keeper (``estimator/isolation``) which files it and its children look at."""

from __future__ import annotations

import contextlib
import ctypes
import socket
from typing import Any

_PR_SET_NO_NEW_PRIVS = 38
_SET_FILTER = 1
_ALL_THREADS, _LISTENER, _THREADS_ERROR, _KILLABLE = 1, 8, 16, 32


class _Filter(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def tell_keeper(kept: dict[str, Any]) -> bool:
    """Install the keeper's filter for good; where the kernel refuses it, return False and let the keeper know.

    Args:
        kept: ``filter`` (instructions as hexadecimal text), ``seccomp`` (the system call's number), ``socket``.
    """
    with socket.socket(fileno=kept["socket"]) as keeper, contextlib.suppress(OSError):
        code = ctypes.create_string_buffer(bytes.fromhex(kept.get("filter", "")))  # and a zero byte
        program = _Filter((len(code) - 1) // 8, ctypes.addressof(code))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0)))
        for killable in (_KILLABLE, 0):  # Linux 5.19: signals do not interrupt calls that are being told
            flags = ctypes.c_ulong(_ALL_THREADS | _LISTENER | _THREADS_ERROR | killable)
            listener = libc.syscall(
                ctypes.c_long(kept["seccomp"]), ctypes.c_ulong(_SET_FILTER), flags, ctypes.byref(program)
            )
            if listener >= 0:
                socket.send_fds(keeper, [b"l"], [listener])
                socket.close(listener)
                return True
    return False
