"""The JSON of ``vramtop --once`` over several hosts, and of a line of ``vramtop stream``."""

from typing import Annotated, Any, Literal, TypedDict

from vramtop.estimator.common.fields_of import FieldsOf
from vramtop.monitor.fleet.fleet import HostReading

from .versioned import Versioned


class StreamLineJson(TypedDict):
    """A host at one moment, a line of `vramtop stream`: unknown figures, and fields at their defaults, are left out."""

    schema: Literal[1]
    """Version of this format, the first key of the line; a later one only if a field changes its meaning."""


class HostsSourceJson(TypedDict):
    """Where the readings are from."""

    kind: Literal["hosts"]
    """Several hosts, over ssh or from a Prometheus."""


class TotalsJson(TypedDict):
    """Sums over the GPUs of live hosts."""

    hosts: int
    """Hosts that were asked."""
    silent_hosts: int
    """Hosts that are silent or unreachable; nothing of theirs is in the other figures."""
    connecting_hosts: int
    """Hosts that have not answered for the first time; likewise."""
    gpus: int
    """GPUs with known figures of now."""
    unknown_gpus: int
    """GPUs whose memory is unknown, or of an earlier time."""
    total_bytes: int | None
    """Memory of these GPUs; null: no GPU has known figures."""
    used_bytes: int | None
    """Used memory; null: likewise."""
    free_bytes: int | None
    """Free memory; null: likewise."""
    committed_bytes: int | None
    """Free memory that running jobs will yet allocate, or that is reserved; null: likewise."""
    unattributed_bytes: int | None
    """Used memory of no visible process; null: likewise."""
    unattributed_unknown: int
    """GPUs whose unattributed memory is unknown: the sum is a lower bound."""
    processes: int
    """Processes on these GPUs."""
    diverging: int
    """Processes that are over, under, growing or out of memory."""


class HostJson(TypedDict):
    """One host at one moment; of one that is not live, the figures are of `age_seconds` ago."""

    age_seconds: float | None
    """Seconds since its last sign of life; null: it is live, or there was none."""


class HostsJson(Versioned):
    """Several hosts at one moment: their sums and their GPUs."""

    time: str
    """Time of this output, ISO 8601 in UTC."""
    source: HostsSourceJson
    """Where the readings are from."""
    notice: str | None
    """What is wrong with the source of the hosts as a whole; null: nothing."""
    totals: TotalsJson
    """Sums over the live hosts."""
    hosts: list[Annotated[dict[str, Any], FieldsOf(HostReading, is_whole=True, also=HostJson)]]
    """The hosts, in the order in which they were named."""
