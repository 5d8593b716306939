"""Permissions of this user: the driver's device files, other users' processes, and pidfds."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

_DEVICE_FILE = re.compile(r"nvidia(\d+|ctl|-uvm|-modeset)|dxg|nvhost-gpu|nvmap")
_HIDEPID = re.compile(r"hidepid=(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFile:
    """A device file of the driver."""

    path: str
    """Path of the file."""
    mode: str
    """Permission bits in octal: ``0666``."""
    usable: bool
    """True if this user may read and write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionFacts:
    """Permissions of this user."""

    root: bool
    """vramtop runs as root."""
    devices: tuple[DeviceFile, ...]
    """Device files of the driver."""
    hidepid: str | None
    """Mount option with which /proc hides other users' processes; None: it does not."""
    sees_others: bool
    """True if processes of another user can be seen."""
    pidfd: bool
    """True if a signal can be sent through a pidfd, which never reaches a later process with the same pid."""


def collect_permission_facts(*, proc: Path = Path("/proc"), dev: Path = Path("/dev")) -> PermissionFacts:
    """Return the permissions of this user on this machine.

    Args:
        proc: folder of the processes.
        dev: folder of the device files.
    """
    return PermissionFacts(
        root=os.geteuid() == 0,
        devices=tuple(_device_files(dev)),
        hidepid=_hidepid(proc),
        sees_others=_sees_others(proc),
        pidfd=_has_pidfd(),
    )


def _device_files(dev: Path) -> list[DeviceFile]:
    try:
        names = sorted(name for name in os.listdir(dev) if _DEVICE_FILE.fullmatch(name))  # noqa: PTH208 - names are enough
    except OSError:
        return []
    found = []
    for name in names:
        try:
            mode = (dev / name).stat().st_mode
        except OSError:
            continue
        usable = os.access(dev / name, os.R_OK | os.W_OK)
        found.append(DeviceFile(path=f"/dev/{name}", mode=f"{mode & 0o7777:04o}", usable=usable))
    return found


def _hidepid(proc: Path) -> str | None:
    try:
        lines = (proc / "self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    options = (words[3] for words in map(str.split, lines) if len(words) > 3 and words[1:3] == ["/proc", "proc"])
    found = (match[1] for each in options if (match := _HIDEPID.search(each)))
    return next((word for word in found if word not in ("0", "off")), None)


def _sees_others(proc: Path) -> bool:
    mine = os.getuid()
    for name in os.listdir(proc):  # noqa: PTH208 - hundreds of processes
        if name.isdecimal():
            try:
                if (proc / name).stat().st_uid != mine:
                    return True
            except OSError:
                continue
    return False


def _has_pidfd() -> bool:
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True
