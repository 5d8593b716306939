"""The calls of a program and its children that the kernel tells or refuses (a seccomp filter, seccomp(2)).

The numbers are those of the kernel's ``syscall_64.tbl`` (x86-64) and ``include/uapi/asm-generic/unistd.h`` (ARM).
"""

import errno
import os
import struct

_X86, _ARM = 0xC000003E, 0xC00000B7
NONE = -1
# name: number on x86-64 and on ARM (-1: not there), arguments with the folder's descriptor (-1: none) and the path
_LOOKS = {
    "open": (2, -1, -1, 0), "openat": (257, 56, 0, 1), "openat2": (437, 437, 0, 1), "creat": (85, -1, -1, 0),
    "stat": (4, -1, -1, 0), "lstat": (6, -1, -1, 0), "newfstatat": (262, 79, 0, 1), "statx": (332, 291, 0, 1),
    "access": (21, -1, -1, 0), "faccessat": (269, 48, 0, 1), "faccessat2": (439, 439, 0, 1),
    "chdir": (80, 49, -1, 0), "readlink": (89, -1, -1, 0), "readlinkat": (267, 78, 0, 1),
    "execve": (59, 221, -1, 0), "execveat": (322, 281, 0, 1),
}  # fmt: skip
CHANGES = {
    "mkdir": (83, -1, -1, 0), "mkdirat": (258, 34, 0, 1), "rmdir": (84, -1, -1, 0),
    "unlink": (87, -1, -1, 0), "unlinkat": (263, 35, 0, 1),
    "rename": (82, -1, -1, 0), "renameat": (264, 38, 0, 1), "renameat2": (316, 276, 0, 1),
    "link": (86, -1, -1, 0), "linkat": (265, 37, 0, 1), "symlink": (88, -1, -1, 1), "symlinkat": (266, 36, 1, 2),
    "mknod": (133, -1, -1, 0), "mknodat": (259, 33, 0, 1), "truncate": (76, 45, -1, 0),
    "chmod": (90, -1, -1, 0), "fchmodat": (268, 53, 0, 1), "fchmodat2": (452, 452, 0, 1), "fchmod": (91, 52, 0, -1),
    "chown": (92, -1, -1, 0), "lchown": (94, -1, -1, 0), "fchownat": (260, 54, 0, 1), "fchown": (93, 55, 0, -1),
    "utime": (132, -1, -1, 0), "utimes": (235, -1, -1, 0), "futimesat": (261, -1, 0, 1), "utimensat": (280, 88, 0, 1),
    "setxattr": (188, 5, -1, 0), "lsetxattr": (189, 6, -1, 0), "fsetxattr": (190, 7, 0, -1),
    "setxattrat": (463, 463, 0, 1), "removexattrat": (466, 466, 0, 1), "file_setattr": (469, 469, 0, 1),
    "removexattr": (197, 14, -1, 0), "lremovexattr": (198, 15, -1, 0), "fremovexattr": (199, 16, 0, -1),
}  # fmt: skip
_MOVES = {name: CHANGES[name] for name in CHANGES if name.startswith(("mk", "rm", "unlink", "rename", "link", "sym"))}
"""What fails where something stands, or gives it another name."""
CONNECT, BIND, SEND_TO = (42, 203), (49, 200), (44, 206)
_SEND_MESSAGES, SEND_MANY = ((46, 307), (211, 269)), (307, 269)
_X32 = 1 << 30
"""First number of a second table of the same calls; with that of 32-bit programs it is not there for the program."""
_IO_URING_SETUP = 425
_FLAGS_AT = {"newfstatat": 3, "statx": 2}
_AT_EMPTY_PATH = 0x1000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AND = 0x54
_NEVER = ((_IO_URING_SETUP, _IO_URING_SETUP), (248, 217), (249, 218), (250, 219))
"""``io_uring_setup``, ``add_key``, ``request_key``, ``keyctl``: they open files unseen, or change the user's keys."""
_SHARED_CALLS = ((29, 194), (64, 190), (68, 186), (240, 180), (241, 181))
"""``shmget``, ``semget``, ``msgget``, ``mq_open``, ``mq_unlink``: what they make outlives the program."""
_ON_PROCESSES = {
    (62, 129): 0, (200, 130): 0, (234, 131): 0, (129, 138): 0, (297, 240): 0, (302, 261): 0, (203, 122): 0,
    (144, 119): 0, (142, 118): 0, (314, 274): 0, (141, 140): 1, (251, 30): 1,
}  # fmt: skip
"""``kill``, ``tkill``, ``tgkill``, ``rt_sigqueueinfo``, ``rt_tgsigqueueinfo``, ``prlimit64``, ``sched_setaffinity``,
``sched_setscheduler``, ``sched_setparam``, ``sched_setattr``, ``setpriority``, ``ioprio_set``: the argument with the
process, before which stands the kind of it, if there are several."""
_TOUCHING = ((101, 117), (311, 271), (424, 424), (438, 438))
"""``ptrace``, ``process_vm_writev``, ``pidfd_send_signal``, ``pidfd_getfd``"""
_IOCTL = (16, 29)
_COMMANDS = (0x40086602, 0x401C5820, 0x40087602, 0x40806685, 0x8901, 0x8902)
"""``ioctl``: ``FS_IOC_SETFLAGS``, ``_FSSETXATTR``, ``_SETVERSION``, ``_ENABLE_VERITY``; ``FIOSETOWN`` and
``SIOCSPGRP``, which have the kernel send signals, as do ``F_SETOWN`` and ``F_SETOWN_EX`` of ``fcntl``."""
_FCNTL, _SET_OWNERS = (72, 25), (8, 15)
_BTRFS = 0x9400
"""Type of btrfs's commands: subvolumes and the like."""
_DENY = 0x00050000 | errno.EPERM
_ALLOW, _NOTIFY, _NOT_THERE = 0x7FFF0000, 0x7FC00000, 0x00050000 | errno.ENOSYS


def instructions(*, guards: bool, told_by: int) -> bytes:
    """Return the instructions (``struct sock_filter``) that select what is told.

    Args:
        guards: calls that change something are told as well, and those that cannot be judged are refused.
        told_by: descriptor with which the program sends the listener, before anybody listens.

    Raises:
        OSError: this machine's system calls are not known.
    """
    arch = _architecture()
    code = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, (_X86, _ARM)[arch]), (_RETURN, 0, 0, _NOT_THERE), (_LOAD, 0, 0, 0)]
    code += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _NOT_THERE)]
    code += [(_EQUAL, 0, 1, CONNECT[arch]), (_RETURN, 0, 0, _NOTIFY)]
    code += [(_EQUAL, 0, 4, SEND_TO[arch]), (_LOAD, 0, 0, 16 + 8 * 4), (_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _NOTIFY)]
    code.append((_RETURN, 0, 0, _ALLOW))
    code += [each for call in _NEVER for each in ((_EQUAL, 0, 1, call[arch]), (_RETURN, 0, 0, _NOT_THERE))]
    if guards:
        code += _guarding(arch, told_by)
    for name, numbers in {**_LOOKS, **(CHANGES if guards else _MOVES)}.items():
        if numbers[arch] == NONE:
            continue
        if name in _FLAGS_AT:  # of an open file, without a path
            code += [(_EQUAL, 0, 4, numbers[arch]), (_LOAD, 0, 0, 16 + 8 * _FLAGS_AT[name])]
            code += [(_ANY_BIT, 0, 1, _AT_EMPTY_PATH), (_RETURN, 0, 0, _ALLOW)]
        else:
            code.append((_EQUAL, 0, 1, numbers[arch]))
        code.append((_RETURN, 0, 0, _NOTIFY))
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *each) for each in code)


def _guarding(arch: int, told_by: int) -> list[tuple[int, int, int, int]]:
    """Return the instructions for calls that change something else than files by their paths."""
    code = [each for call in _SHARED_CALLS for each in ((_EQUAL, 0, 1, call[arch]), (_RETURN, 0, 0, _NOT_THERE))]
    code += [each for call in _ON_PROCESSES for each in ((_EQUAL, 0, 1, call[arch]), (_RETURN, 0, 0, _NOTIFY))]
    code += [each for call in _TOUCHING for each in ((_EQUAL, 0, 1, call[arch]), (_RETURN, 0, 0, _DENY))]
    code += [(_EQUAL, 0, 1, BIND[arch]), (_RETURN, 0, 0, _NOTIFY)]
    for number in _SEND_MESSAGES[arch]:
        code += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, 16), (_EQUAL, 1, 0, told_by), (_RETURN, 0, 0, _NOTIFY)]
        code.append((_RETURN, 0, 0, _ALLOW))
    owners = [each for command in _SET_OWNERS for each in ((_EQUAL, 0, 1, command), (_RETURN, 0, 0, _DENY))]
    code += [(_EQUAL, 0, len(owners) + 2, _FCNTL[arch]), (_LOAD, 0, 0, 24), *owners, (_RETURN, 0, 0, _ALLOW)]
    commands = [each for command in _COMMANDS for each in ((_EQUAL, 0, 1, command), (_RETURN, 0, 0, _DENY))]
    code += [(_EQUAL, 0, len(commands) + 5, _IOCTL[arch]), (_LOAD, 0, 0, 24), *commands, (_AND, 0, 0, 0xFF00)]
    code += [(_EQUAL, 0, 1, _BTRFS), (_RETURN, 0, 0, _DENY), (_RETURN, 0, 0, _ALLOW)]
    return code


def calls_with_paths() -> dict[int, tuple[str, int, int]]:
    """Return this machine's calls that name a path: name, and where the folder's descriptor and the path are."""
    arch = _architecture()
    tables = {**_LOOKS, **CHANGES}.items()
    return {numbers[arch]: (name, numbers[2], numbers[3]) for name, numbers in tables if numbers[arch] != NONE}


def calls_on_processes() -> dict[int, int]:
    """Return this machine's calls that change a process, and where its number is."""
    arch = _architecture()
    return {numbers[arch]: at for numbers, at in _ON_PROCESSES.items()}


def _architecture() -> int:
    """Return the place of this machine's numbers in the tables.

    Raises:
        OSError: it is a machine without them.
    """
    try:
        return ("x86_64", "aarch64").index(os.uname().machine)
    except ValueError:
        raise OSError(errno.ENOSYS, f"no system calls are known of {os.uname().machine}") from None
