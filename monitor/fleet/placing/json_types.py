"""The JSON of a job over a fleet, key by key (``vramtop fit --host --json``); its schema is made from these types."""

from typing import TypedDict

from ...board.fit import Verdict
from ..host_reading import HostState


class PlacedHostJson(TypedDict):
    """A host that the job should be started on."""

    host: str
    """Name of the host."""
    gpus: list[str]
    """Labels of the GPUs, in the order of the ranks: the index, or `0:3` for a MIG device."""
    uuids: list[str | None]
    """UUIDs of these GPUs; null: unknown."""


class HostFitJson(TypedDict):
    """Verdicts of a job, or of those of its ranks that one host takes, on the GPUs of one type of a host."""

    host: str
    """Name of the host."""
    state: HostState
    """Whether the host answers."""
    age_seconds: float | None
    """Seconds since the last sign of life of a host that is not live; null: it is live, or there was none."""
    considered: bool
    """Its figures are of now, and it has GPUs that the job can use."""
    name: str | None
    """Type of its GPUs; null: not considered."""
    total_bytes: int | None
    """Memory of each of these GPUs; null: not considered."""
    gpus: int
    """Number of GPUs of that type."""
    verdict: Verdict
    """With what is free and not committed now."""
    later: Verdict
    """Once the running jobs have ended."""
    empty: Verdict
    """If nothing else ran there."""
    device_bytes: int | None
    """Expected peak of the rank with the highest; null: not estimated."""
    placement: list[str]
    """Labels of the GPUs of the ranks, in their order; empty: the host cannot take the job now."""
    placement_uuids: list[str | None]
    """UUIDs of these GPUs; null: unknown."""
    free_block_bytes: int | None
    """Largest free block as it is; null: not considered."""
    left_block_bytes: int | None
    """Largest free block with the job on it; null: it cannot take the job now."""
    left_bytes: int | None
    """Sum of what all of these GPUs have left then; null: likewise."""
    reason: str | None
    """Why a verdict is unknown, or why the host is not considered; null: it needs none."""


class FleetFitJson(TypedDict):
    """Whether a fleet can take a job, and where it should go."""

    verdict: Verdict
    """Whether it can be started now."""
    later: Verdict
    """Whether it can be started once the running jobs have ended."""
    empty: Verdict
    """Whether it could be started if nothing else ran anywhere."""
    ranks: int
    """Ranks of the job."""
    hosts_needed: int
    """1, or the number of hosts over which a job is spread that has more ranks than any host has GPUs."""
    placement: list[PlacedHostJson]
    """Hosts that leave the largest free block, in the order of the ranks; empty: it cannot be started now."""
    largest_block_bytes: int | None
    """Largest free block in the fleet with the job placed; null: it is not placed."""
    hosts: list[HostFitJson]
    """Every host: those that the job should take first, those without figures of now last."""
