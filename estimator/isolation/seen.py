"""What a program's answer depended on, told by what stands at a path: compared later, never read."""

import hashlib
import os
import stat

EXISTS, USED, LISTED = 0, 1, 2
"""How a path was used: looked for or overwritten, read, or listed. A higher one tells more."""
MAX_PATHS = 200_000
MAX_NAMES = 1_000_000
"""Names in listed folders, in all."""
UNKNOWN = "unknown"


def signature(path: str, use: int) -> str:
    """Return what a later look is compared with; the file itself is not opened, whatever it has become.

    A file is told by its inode, size and times: the time of change (``ctime``) cannot be set by a program.

    Args:
        path: absolute.
        use: ``EXISTS``, ``USED`` or ``LISTED``.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except (OSError, ValueError):
        return "closed"
    if stat.S_ISDIR(found.st_mode):
        return _listing(path) if use == LISTED else "folder"
    if not stat.S_ISREG(found.st_mode):
        return f"special {stat.S_IFMT(found.st_mode)}"
    if use == EXISTS:
        return "file"
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def _listing(path: str) -> str:
    digest, count = hashlib.sha256(), 0
    try:
        names = []
        with os.scandir(path) as entries:
            for entry in entries:
                count += 1
                if count > MAX_NAMES:
                    return UNKNOWN
                names.append(os.fsencode(entry.name))
    except OSError:
        return "closed"
    for name in sorted(names):
        digest.update(name + b"\0")
    return f"{count} names {digest.hexdigest()[:32]}"
