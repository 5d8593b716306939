"""The machine's RAM: what of it can be had, and whether a job's processes find room in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vramtop.estimator.common.sizes import format_gib

if TYPE_CHECKING:
    from vramtop.estimator.budget.host_need import HostNeed

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRam:
    """What RAM a job can have."""

    available_bytes: int
    """Free, or in caches that the system drops when it is asked for; within the container's limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostVerdict:
    """Whether the ranks of one machine fit its RAM."""

    verdict: Literal["fits", "tight", "does_not_fit"]
    need: "HostNeed"
    ranks: int
    available_bytes: int
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """The contract's ``host``."""
        from vramtop.estimator.formula.host_memory import ASSUMPTION  # not at start-up: it brings the estimator

        return {
            "verdict": self.verdict,
            "available_bytes": self.available_bytes,
            **self.need.to_json(self.ranks),
            "assumption": ASSUMPTION,
        }


def available_host_memory(cgroup: Path = _CGROUP) -> HostRam:
    """Of this machine, and of the control group we are in (version 2, as its own root shows it).

    Args:
        cgroup: where the group's files lie.
    """
    import psutil

    available = int(psutil.virtual_memory().available)
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is not None and used is not None:
        available = min(available, max(0, limit - used + _inactive_files(cgroup)))
    return HostRam(available_bytes=available)


def host_total_bytes(cgroup: Path = _CGROUP) -> int:
    """This machine's RAM, or as much of it as the control group may use.

    Args:
        cgroup: where the group's files lie.
    """
    import psutil

    total, limit = int(psutil.virtual_memory().total), _number(cgroup / "memory.max")
    return total if limit is None else min(total, limit)


def host_verdict(need: "HostNeed", room: HostRam, *, ranks: int) -> HostVerdict:
    """Hold the need of so many ranks of one machine against its RAM."""
    peak, high = need.peak_bytes(ranks), need.high_bytes(ranks)
    loading = need.loading_bytes(ranks) >= need.steady_bytes(ranks)
    when = "while loading" if loading else "while training"
    each = f"{ranks} processes need" if ranks > 1 else "the process needs"
    have = f"{format_gib(room.available_bytes)} GiB are available"
    verdict: Literal["fits", "tight", "does_not_fit"]
    if peak > room.available_bytes:
        verdict = "does_not_fit"
        sentence = f"{each} {format_gib(peak)} GiB of host memory {when}, and {have}"
    elif high > room.available_bytes:
        verdict = "tight"
        sentence = f"{each} {format_gib(peak)} GiB of host memory {when}, perhaps {format_gib(high)}, and {have}"
    else:
        verdict = "fits"
        sentence = f"{each} {format_gib(peak)} GiB of host memory {when}; {have}"
    return HostVerdict(verdict=verdict, need=need, ranks=ranks, available_bytes=room.available_bytes, sentence=sentence)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


def _inactive_files(cgroup: Path) -> int:
    """Pages of files that the group can drop; 0 where it does not say."""
    try:
        lines = (cgroup / "memory.stat").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return 0
    found = (line.split() for line in lines)
    return next((int(words[1]) for words in found if len(words) == 2 and words[0] == "inactive_file"), 0)
