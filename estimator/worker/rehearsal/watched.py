"""Has the kernel tell this program's keeper (``estimator/isolation``) which files it and its children look at."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_FILTER = 1
_MAX_FILTER_BYTES = 1 << 15
_ALL_THREADS, _LISTENER, _THREADS_ERROR, _KILLABLE = 1, 8, 16, 32


class _Filter(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def tell_keeper(descriptor: int) -> bool:
    """Install the keeper's filter for good; where the kernel refuses it, return False and let the keeper know.

    Args:
        descriptor: of a socket of the keeper's, which sends the filter and gets its listener.
    """
    with socket.socket(fileno=descriptor) as keeper, contextlib.suppress(OSError):
        instructions = keeper.recv(_MAX_FILTER_BYTES)
        code = ctypes.create_string_buffer(instructions, len(instructions))
        program = _Filter(len(instructions) // 8, ctypes.addressof(code))
        libc = ctypes.CDLL(None, use_errno=True)
        number = ctypes.c_long(_SECCOMP[os.uname().machine])
        libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0)))
        for killable in (_KILLABLE, 0):  # Linux 5.19: signals do not interrupt calls that are being told
            flags = ctypes.c_ulong(_ALL_THREADS | _LISTENER | _THREADS_ERROR | killable)
            listener = libc.syscall(number, ctypes.c_ulong(_SET_FILTER), flags, ctypes.byref(program))
            if listener >= 0:
                socket.send_fds(keeper, [b"l"], [listener])
                socket.close(listener)
                return True
    return False
