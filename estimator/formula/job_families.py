"""Jobs of one model that differ in micro-batch and sequence length only, and what they share."""

from collections import OrderedDict
from collections.abc import Hashable

from msgspec import Struct
from msgspec.structs import astuple

from ..host_need import HostNeed
from ..job.job import Job
from ..job.settings import Training
from .plan import Plan
from .rank_memory import RankMemory


class Prepared(Struct, frozen=True, kw_only=True):
    """All that an estimate needs besides the micro-batch and the sequence length."""

    plan: Plan
    """Plan of the first job."""
    ranks: tuple[RankMemory, ...]
    """Memory of a rank of each distinct pipeline stage."""
    trainable_parameters: int
    saved_state_bytes: int
    host: HostNeed | None
    """None: it depends on the sizes."""


_TRAINING = Job.__struct_fields__.index("training")
_MICRO_BATCH, _LENGTH = (Training.__struct_fields__.index(name) for name in ("micro_batch", "sequence_length"))
_KEPT_FAMILIES = 64


class JobFamilies:
    """Families of jobs of one model that differ in micro-batch and sequence length only: what they share, found once.

    Jobs belong together if they have the same tables (the same objects, as ``with_changes`` leaves what it does not
    change) and the same training but for these two.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Prepared] = OrderedDict()

    def find(self, job: Job) -> Prepared | None:
        """Return what is known of the job's family; None: nothing yet."""
        try:
            return self._known.get(_family(job))
        except TypeError:  # lists and tables of training cannot be looked up
            return None

    def remember(self, prepared: Prepared) -> None:
        """Remember a family by its first job, whose tables it keeps: no others can take their place."""
        try:
            self._known[_family(prepared.plan.job.job)] = prepared
        except TypeError:
            return
        if len(self._known) > _KEPT_FAMILIES:
            self._known.popitem(last=False)


def _family(job: Job) -> Hashable:
    tables, training = astuple(job), astuple(job.training)
    return (
        *map(id, tables[:_TRAINING]),
        *map(id, tables[_TRAINING + 1 :]),
        training[:_MICRO_BATCH],
        training[_MICRO_BATCH + 1 : _LENGTH],
        training[_LENGTH + 1 :],
    )
