"""The JSON of ``vramtop --once`` over several hosts."""

from typing import Annotated, Any, Literal, TypedDict

from vramtop.estimator.budget import FieldsOf
from vramtop.monitor.fleet import HostReading

from .version import Versioned


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
    runs: int
    """Runs with a rank on a live host."""
    diverging_runs: int
    """Runs of which a rank on a live host is over, under, growing or out of memory."""
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


class RankJson(TypedDict):
    """One rank of a run on one GPU of a host."""

    host: str
    """Name of the host."""
    gpu: int
    """NVML index of the GPU."""
    rank: int | None
    """Rank over all hosts."""
    pid: int | None
    """Its process id."""
    peak_bytes: int | None
    """The most memory that it was seen to hold."""
    status: str | None
    """Comparison of the process with its budget, a status of `vramtop --once --json`; null: it has none."""


class DivergingRankJson(RankJson):
    """A rank that needs attention."""

    sentence: str | None
    """Its status in words."""


class FleetRunJson(TypedDict):
    """One run, on one host or several."""

    job: str | None
    """Label of its job; null: unknown."""
    user: str | None
    """Its user."""
    hosts: list[str]
    """Names of its hosts."""
    ranks: int
    """Ranks that were found."""
    world_size: int | None
    """Ranks over all hosts, as the ranks say; null: they do not."""
    unseen_ranks: int
    """Ranks that no host shows, by the world size."""
    status: str | None
    """Worst status of its live ranks, a status of `vramtop --once --json`; null: none has a budget."""
    used_bytes: int | None
    """Memory of the live ranks together."""
    used_is_partial: bool
    """`used_bytes` is a lower bound: a rank is silent, unseen, or of unknown size."""
    budget_bytes: int | None
    """Memory that the budgets predict for all ranks together between steps; null: no rank has a budget."""
    spread_bytes: int | None
    """Difference between the highest and the lowest live rank; null: one rank, or a size is unknown."""
    highest: RankJson | None
    """The rank with the highest peak; null: no figure is known."""
    diverging: list[DivergingRankJson]
    """Live ranks that need attention, the worst first."""
    stragglers: list[RankJson]
    """Live ranks that are behind the others."""


class HostJson(TypedDict):
    """One host at one moment; of one that is not live, the figures are of `age_seconds` ago."""

    age_seconds: float | None
    """Seconds since its last sign of life; null: it is live, or there was none."""


class HostsJson(Versioned):
    """Several hosts at one moment: their sums, their GPUs, and the runs that span them."""

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
    runs: list[FleetRunJson]
    """The runs on all hosts, each once."""
