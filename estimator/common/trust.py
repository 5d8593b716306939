"""Decides what may be imported, executed and believed, and by whose will.

What a path holds is the will of all who may write to it or to a folder above it. vramtop acts on the will of its own
user, of root, and of whoever owns ``/``, who may change anything (in a user namespace that need not be 0).

The user's own words are their will whatever they name: a path with a slash, ``--python``, an active environment, a
command after ``--``. Names that are looked up in folders, and folders in variables, are not: others may have set them.
"""

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAX_LINKS = 40


@dataclass(frozen=True, slots=True)
class Writers:
    """Users, and groups of theirs, whose will counts."""

    users: frozenset[int]
    groups: frozenset[int] = frozenset()
    """Groups that may write; of others only a user's private group may, which has no further member."""
    owners_alone: bool = False
    """Only whose a file or folder is counts, not who else may write to it."""
    links_alone: bool = False
    """Only links count."""

    def distrust(self, path: str | Path) -> str | None:
        """Return why others may decide what stands at an absolute path; None: they may not; see ``find_distrusted``."""
        found = self.find_distrusted(path)
        if found is None:
            return None
        place, reason = found
        return reason.format("it" if place == str(path).rstrip("/") else place)

    def find_distrusted(self, path: str | Path) -> tuple[str, str] | None:
        """Return the place through which others may decide what stands at an absolute path; None: there is none.

        Every folder on the way is looked at, and every link: who may replace one of them decides about all below.

        Returns:
            The path as it was given if what stands there is theirs, else that of a folder or link on the way; and the
            reason, with ``{}`` for its name.

        Raises:
            OSError: there is nothing, or a folder on the way cannot be entered.
        """
        wanted, at, below, links = str(path), "/", "/", 0
        rest = [part for part in reversed(wanted.split("/")) if part]
        reason = self._reason(os.lstat("/"), is_above=bool(rest))
        while rest and reason is None:
            part = rest.pop()
            if part in (".", ".."):
                at = os.path.dirname(at) if part == ".." else at  # noqa: PTH120
                continue
            below = os.path.join(at, part)  # noqa: PTH118
            found = os.lstat(below)
            reason = self._reason(found, is_above=bool(rest))
            if not stat.S_ISLNK(found.st_mode):
                at = below
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), wanted)
            target = os.readlink(below)  # noqa: PTH115
            at = "/" if target.startswith("/") else at
            rest += [part for part in reversed(target.split("/")) if part]
        if reason is None:
            return None
        return wanted.rstrip("/") if wanted.rstrip("/") in (at, below) else below, reason

    def _reason(self, found: os.stat_result, *, is_above: bool) -> str | None:
        """Return what speaks against a file or folder; in one above with the sticky bit none may replace others'."""
        if self.links_alone and not stat.S_ISLNK(found.st_mode):
            return None
        if found.st_uid not in self.users:
            return "{} belongs to another user"
        if self.owners_alone or stat.S_ISLNK(found.st_mode) or (is_above and found.st_mode & stat.S_ISVTX):
            return None
        if found.st_mode & stat.S_IWOTH:
            return "anyone may write to {}"
        if found.st_mode & stat.S_IWGRP and found.st_gid not in self.groups and not _is_private_group(found):
            return "another group may write to {}"
        return None


def own_writers() -> Writers:
    """Return this user, root, and the owner of ``/``."""
    return Writers(frozenset({0, os.geteuid(), os.stat("/").st_uid}))  # noqa: PTH116 - cheap at start-up


def writers_of_program(program: Path) -> Writers:
    """Return also those who may replace a program that the user runs: modules beside it may be theirs too."""
    users, groups = set(own_writers().users), set[int]()
    for path in (program, program.parent):
        try:
            found = path.stat()
        except OSError:
            continue
        users.add(found.st_uid)
        if found.st_mode & stat.S_IWGRP:
            groups.add(found.st_gid)
    return Writers(frozenset(users), frozenset(groups))


def look_up_program(name: str, path: str | None) -> Path | None:
    """Return the program that a shell would find in the absolute folders of a PATH, to read what it is; None: none.

    Relative folders are left out: they would count from the current folder, where anyone may have put such a program.

    Args:
        name: of the program, or its path.
        path: value of PATH; None or empty: the system's default.
    """
    return next(_programs(name, path), None)


def find_program(name: str, path: str | None) -> Path | None:
    """Return the first program of ``look_up_program`` about which nobody else decides; a path as name stays the user's.

    None: there is none; ``why_not_found`` says why.
    """
    if "/" in name:
        return look_up_program(name, path)
    own = own_writers()
    return next((found for found in _programs(name, path) if _distrusted(own, found) is None), None)


def why_not_found(name: str, path: str | None) -> str:
    """Return why ``find_program`` has none, as a sentence without a full stop."""
    found = look_up_program(name, path)
    if found is None and "/" in name:
        return f"there is no {name}"
    if found is None:
        relative = not all(map(os.path.isabs, (path or os.defpath).split(os.pathsep)))
        return f"there is no {name} in PATH{' (relative folders are ignored)' if relative else ''}"
    return f"vramtop does not start {found}: {_distrusted(own_writers(), found)}"


def process_owner(pid: int) -> int | None:
    """Return the user id of a process; None: there is none, or it cannot be seen."""
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - a path that is read once
    except OSError:
        return None


def user_name(uid: int) -> str:
    """Return a user's name, or their number if they have none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _programs(name: str, path: str | None) -> Iterator[Path]:
    import shutil  # here: it loads what unpacks archives

    folders = [each for each in (path or os.defpath).split(os.pathsep) if os.path.isabs(each)]  # noqa: PTH117
    for folder in folders if "/" not in name else [None]:
        found = shutil.which(name, path=folder)
        if found:
            yield Path(found)


def _distrusted(writers: Writers, path: Path) -> str | None:
    try:
        return writers.distrust(path)
    except OSError as error:
        return error.strerror or "it is not accessible"


def _is_private_group(found: os.stat_result) -> bool:
    """Return True if a file's group bears its owner's name, is their first one, and has no other member."""
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == found.st_gid and group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}
