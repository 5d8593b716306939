"""The machine's RAM: how much of it is available, and whether the processes of a job fit in it."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from vramtop.estimator.common.sizes import format_gib

from .kernel_files import CGROUP, inactive_file_bytes, read_number

if TYPE_CHECKING:
    from vramtop.estimator.host_need import HostNeed

RANKS_OF_DESCRIBED_HOST = 8
"""Maximum number of ranks that share the RAM of a described machine: most servers have eight GPUs."""


class HostVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Result of comparing the host memory that a machine's ranks need with its RAM."""

    verdict: Literal["fits", "tight", "does_not_fit"]
    need: "HostNeed"
    ranks: int
    available_bytes: int
    sentence: str


def available_host_memory(cgroup: Path = CGROUP) -> int:
    """Return the bytes of RAM that are free, or in caches that the system drops on demand, on this machine.

    Within vramtop's control group (version 2).

    Args:
        cgroup: folder of the control group's files, as the group sees itself.
    """
    import psutil

    available = int(psutil.virtual_memory().available)
    limit, used = read_number(cgroup / "memory.max"), read_number(cgroup / "memory.current")
    if limit is not None and used is not None:
        available = min(available, max(0, limit - used + inactive_file_bytes(cgroup)))
    return available


def host_total_bytes() -> int:
    """Return this machine's RAM, or the control group's limit if that is less."""
    import psutil

    total, limit = int(psutil.virtual_memory().total), read_number(CGROUP / "memory.max")
    return total if limit is None else min(total, limit)


def host_verdict(need: "HostNeed", available_bytes: int, *, ranks: int) -> HostVerdict:
    """Compare the host memory that a number of ranks need with the machine's RAM.

    Args:
        need: of one rank and of the machine.
        available_bytes: RAM that they can use.
        ranks: number of ranks on the machine.
    """
    peak, high = need.peak_bytes(ranks), need.high_bytes(ranks)
    when = "while loading"
    if need.loading_bytes(ranks) < peak:
        when = "while saving" if need.steady_bytes(ranks) < peak else "while training"
    each = f"{ranks} processes need" if ranks > 1 else "the process needs"
    have = f"{format_gib(available_bytes)} GiB are available"
    verdict: Literal["fits", "tight", "does_not_fit"]
    if peak > available_bytes:
        verdict = "does_not_fit"
        sentence = f"{each} {format_gib(peak)} GiB of host memory {when}, and {have}"
    elif high > available_bytes:
        verdict = "tight"
        sentence = f"{each} {format_gib(peak)} GiB of host memory {when}, perhaps {format_gib(high)}, and {have}"
    else:
        verdict = "fits"
        sentence = f"{each} {format_gib(peak)} GiB of host memory {when}; {have}"
    return HostVerdict(verdict=verdict, need=need, ranks=ranks, available_bytes=available_bytes, sentence=sentence)
