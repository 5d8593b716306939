"""Chooses SQLite's journal: a write-ahead log, except on file systems that several machines share."""

import os
from pathlib import Path

_TYPE_WORDS = (
    "nfs nfs4 lustre gpfs beegfs ceph cifs smb3 smbfs afs 9p glusterfs panfs pvfs2 fuse.sshfs fuse.glusterfs "
    "fuse.ceph-fuse fuse.juicefs fuse.weka wekafs ncpfs"
)
_SHARED_TYPES = frozenset(_TYPE_WORDS.split())
"""Types of file systems that other machines may write too. A write-ahead log needs memory that all its readers share
(https://www.sqlite.org/wal.html, section 1), which two machines do not have."""
_MOUNTS = Path("/proc/self/mountinfo")


def journal_mode(path: Path, mounts: Path = _MOUNTS) -> str:
    """Return ``WAL``, or ``DELETE`` if other machines may write the file too.

    Args:
        path: of the database.
        mounts: the kernel's table of mounts (proc_pid_mountinfo(5)).
    """
    return "DELETE" if _file_system(path, mounts) in _SHARED_TYPES else "WAL"


def _file_system(path: Path, mounts: Path) -> str | None:
    """Return the type of the file system that holds a path; None: unknown."""
    best, found = -1, None
    real = os.path.realpath(path)
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:
        fields, _, rest = line.partition(" - ")
        words, kind = fields.split(" "), rest.split(" ")[0]
        if len(words) <= 4:
            continue
        point = words[4].replace("\\040", " ").rstrip("/")
        if (real == point or real.startswith(f"{point}/")) and len(point) >= best:
            best, found = len(point), kind
    return found
