"""What this user may do here: open the driver's devices, see other users' processes, hold on to a process."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

_DEVICE = re.compile(r"nvidia(\d+|ctl|-uvm|-modeset)|dxg|nvhost-gpu|nvmap")
_HIDEPID = re.compile(r"hidepid=(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFile:
    """A device file of the driver."""

    path: str
    mode: str
    """As ``ls`` counts it, in octal: ``0666``."""
    usable: bool
    """This user may read and write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionFacts:
    """What this user may do."""

    root: bool
    devices: tuple[DeviceFile, ...]
    hidepid: str | None
    """How /proc hides other users' processes; None: it does not."""
    sees_others: bool
    """Processes of another user can be seen."""
    pidfd: bool
    """A process can be held on to, so that a signal reaches no other one."""


def collect_permission_facts(*, proc: Path = Path("/proc"), dev: Path = Path("/dev")) -> PermissionFacts:
    """Of this user on this machine.

    Args:
        proc: where processes are.
        dev: where device files are.
    """
    return PermissionFacts(
        root=os.geteuid() == 0,
        devices=tuple(_devices(dev)),
        hidepid=_hidepid(proc),
        sees_others=_sees_others(proc),
        pidfd=_has_pidfd(),
    )


def _devices(dev: Path) -> list[DeviceFile]:
    try:
        names = sorted(name for name in os.listdir(dev) if _DEVICE.fullmatch(name))  # noqa: PTH208 - names are enough
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
