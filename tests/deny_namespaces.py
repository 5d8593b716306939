"""Runs a program as in most containers: the kernel gives it no namespaces, and with ``--no-landlock`` no Landlock.

``python deny_namespaces.py [--no-landlock] PROGRAM ARGUMENT...``
"""

import ctypes
import errno
import os
import platform
import struct
import sys

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000
UNSHARE = {"x86_64": 272, "aarch64": 97}
LANDLOCK_CREATE_RULESET = 444
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2

words = sys.argv[1:]
denied = {UNSHARE[platform.machine()]: errno.EPERM}
if words[0] == "--no-landlock":
    del words[0]
    denied[LANDLOCK_CREATE_RULESET] = errno.ENOSYS
code = [(LOAD, 0, 0, 0)]
for number, error in denied.items():
    code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ERROR | error)]
code.append((RETURN, 0, 0, ALLOW))


class Filter(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


program = Filter(len(code), b"".join(struct.pack("HBBI", *each) for each in code))
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0)))
if libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.byref(program)):
    raise OSError(ctypes.get_errno(), "seccomp")
os.execv(words[0], words)  # noqa: S606 - its words are not for a shell
