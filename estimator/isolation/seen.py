"""Tells what stands at a path, which a program's answer depended on: it is compared later, and never opened."""

import os
import stat

EXISTS, USED, LISTED = 0, 1, 2
"""How a path was used: looked for or overwritten, looked at, or opened to be read or listed."""
MAX_PATHS = 200_000
MAX_NAMES = 1_000_000
"""Names in a listed folder."""
UNKNOWN = "unknown"


def signature(path: str, use: int, folders: dict[str, str] | None = None) -> str:
    """Return what a later look is compared with; the file itself is not opened, whatever it has become.

    A file is told by its inode, size and times: the time of change (``ctime``) cannot be set by a program. Where links
    lead is told first: programs go on from there.

    Args:
        path: absolute.
        use: ``EXISTS``, ``USED`` or ``LISTED``.
        folders: what folders resolve to, shared by looks at one time; None: this is the only one.
    """
    try:
        where = _resolved(path, {} if folders is None else folders)
        leads = "" if where == path else f"{where}: "
        return leads + _content(path, use)
    except (OSError, ValueError):
        return "closed"


def _resolved(path: str, folders: dict[str, str]) -> str:
    parent, name = os.path.split(path)
    if name in ("", ".", "..") or os.path.islink(path):
        return os.path.realpath(path)
    if parent not in folders:
        folders[parent] = os.path.realpath(parent)
    return os.path.join(folders[parent], name)


def _content(path: str, use: int) -> str:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    if stat.S_ISDIR(found.st_mode):
        return _listing(path) if use == LISTED else f"folder {stat.S_IMODE(found.st_mode):o}"
    if not stat.S_ISREG(found.st_mode):
        return f"special {stat.S_IFMT(found.st_mode)}"
    if use == EXISTS:
        return "file"
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def _listing(path: str) -> str:
    """Return a digest of the names in a folder and of their kinds, which are told with them."""
    import hashlib  # here: a program waits for its keeper

    names: list[bytes] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if len(names) >= MAX_NAMES:
                return UNKNOWN
            kind = b"l" if entry.is_symlink() else b"d" if entry.is_dir(follow_symlinks=False) else b"f"
            names.append(kind + os.fsencode(entry.name))
    digest = hashlib.sha256(b"\0".join(sorted(names)))
    return f"{len(names)} names {digest.hexdigest()[:32]}"
