"""Ranges of an estimate: how far what torch allocates, what it reserves, and the device's memory may lie from it."""

from collections.abc import Iterable
from math import hypot
from typing import Literal

import msgspec
from msgspec import Struct

from ..budget import Components, Span
from ..common.records import replace
from ..common.sizes import MIB
from ..job.resolved_job import ResolvedJob
from ..model.architecture import Architecture

# The sources of doubt of an estimate: what its figures rest on that was not checked against the real thing.


StepDoubt = Literal["checked", "adapters", "framework", "compiled", "shape", "recurrent"]
"""Reason for the range of a step's tensors.

``checked``: they were compared with what autograd saves, as those of transformers and LitGPT were; ``adapters``:
likewise, but what adapted and quantized layers save depends on dtypes and dropout, which few jobs state; ``framework``:
they were read in the sources of another framework; ``compiled``: torch.compile decides; ``shape``: the family has no
rules, and is counted as a decoder of its shape; ``recurrent``: blocks are no attention, which no rule describes, and
which a trace runs without their fused kernels.
"""
AllocatorDoubt = Literal["plain", "fsdp2", "fsdp1", "other"]
"""Whose streams the allocator serves: one only (``plain``), those of FSDP, or of another library."""


class Doubts(Struct, frozen=True):
    """The sources of doubt of one estimate."""

    step: StepDoubt
    allocator: AllocatorDoubt


def doubts_of(job: ResolvedJob, *, known_family: bool = True, recurrent: bool = False) -> Doubts:
    """Return the sources of doubt of a job.

    Args:
        job: the job.
        known_family: rules describe the blocks of the model's family, or its own code was traced.
        recurrent: blocks of the model are recurrent.
    """
    return Doubts(
        step="recurrent" if recurrent else _step_doubt(job) if known_family else "shape",
        allocator=_allocator_doubt(job),
    )


def _step_doubt(job: ResolvedJob) -> StepDoubt:
    if job.training.compile:
        return "compiled"
    if not job.framework.checked_activations:
        return "framework"
    return "checked" if job.lora is None else "adapters"


def _allocator_doubt(job: ResolvedJob) -> AllocatorDoubt:
    if job.parallel.world_size == 1 or job.strategy.buckets:
        return "plain"
    if job.strategy.fsdp2:
        return "fsdp2"
    return "fsdp1" if job.strategy.flat_parameters else "other"


# The calibration of ranges: by which share the bytes in doubt may be wrong, for each source of doubt.
#
# ``tests/accuracy/calibrate.py`` derives the numbers from published figures, and a test compares them with these.


COUNT_SHARE = 0.002
"""Relative error of weights, gradients and optimizer states whose parameters were counted exactly."""
APPROXIMATE_COUNT_SHARE = 0.1
"""Relative error upwards of an approximate count; downwards it is ``UNKNOWN_FAMILY_ERROR``."""
SMALL_BYTES = 24 * MIB
"""Resolution of every estimate: rounding of the allocator, small tensors, buffers of the data."""


NCCL_SHARE = 1.0
"""Relative error of NCCL's buffers: a judgment, not derived.

A channel's connection has 9.2 MiB of buffers (512 KiB, 4.7 MiB and 4 MiB for its protocols: ``computeBuffSizes`` in
NCCL's src/init.cc, src/include/device.h). Rings have one connection per channel, trees up to three; since 2.22 only
what is used is connected (``NCCL_RUNTIME_CONNECT``). With 24 to 32 channels that is 220 to 882 MiB where 688 are
expected: 68 % less to 28 % more. Without peer access the buffers lie in host memory: all of it less. One published
figure, of a first barrier that also loads kernels, is 173 % more.
"""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the bytes in doubt by which a figure may be wrong, either way, nine times in ten."""

    step: dict[StepDoubt, float]
    """Error of activations, logits, temporary tensors and communication buffers."""
    allocator: dict[AllocatorDoubt, float]
    """Error of the bytes that the allocator keeps beyond the allocated ones, and of 3 % of these."""
    context: float
    """Error of the CUDA context and libraries."""
    nccl: float
    """Error of NCCL's buffers."""
    small_bytes: int = SMALL_BYTES
    """Smallest error assumed for allocated memory, in bytes."""


FORMULA = Calibration(
    step={"checked": 0.05, "adapters": 0.17, "framework": 0.1, "compiled": 0.215, "shape": 0.4, "recurrent": 3.0},
    allocator={"plain": 0.5, "fsdp2": 0.5, "fsdp1": 0.5, "other": 0.7},
    context=0.515,
    nccl=NCCL_SHARE,
)
TRACED = Calibration(
    step={"checked": 0.05, "adapters": 0.177, "framework": 0.1, "compiled": 0.317, "shape": 0.05, "recurrent": 0.7},
    allocator={"plain": 0.5, "fsdp2": 0.6, "fsdp1": 0.6, "other": 0.7},
    context=0.515,
    nccl=NCCL_SHARE,
)
REHEARSED = replace(TRACED, small_bytes=2 * MIB)
"""The program's own tensors, rounded as the allocator does: what is left is a segment of its smallest kind."""


# Ranges of what is allocated, what is reserved, and what the device shows: independent errors, added as squares.


_KEPT_SHARE = 0.03
"""Share of the allocated bytes that are in doubt as the allocator's, however little it is expected to keep."""


class DoubtfulBytes(Struct, frozen=True, kw_only=True):
    """Bytes of an estimate by the error that they are subject to."""

    states: int
    """Weights, gradients and optimizer states."""
    step: int
    """Activations, logits, temporary tensors and communication buffers in torch's allocator."""
    allocator: int
    """Bytes that the allocator keeps beyond the allocated ones, and a share of these."""
    context: int
    """CUDA context and libraries."""
    nccl: int

    @classmethod
    def of(cls, parts: Components, *, allocated: int, reserved: int, outside: int) -> "DoubtfulBytes":
        """Return the bytes of an estimate.

        Args:
            parts: components of the peak.
            allocated: allocated bytes of the peak.
            reserved: reserved bytes.
            outside: bytes that never pass through torch's allocator.
        """
        nccl = max(0, outside - parts.context)
        states = parts.weights + parts.other_models + parts.gradients + parts.optimizer
        return cls(
            states=states,
            step=max(0, parts.total_bytes - outside - states),
            allocator=reserved - allocated + round(_KEPT_SHARE * allocated),
            context=parts.context,
            nccl=nccl,
        )


class WorkspaceDoubt(Struct, frozen=True, kw_only=True):
    """Error of the convolution workspaces: bytes below and bytes above the expected figure."""

    allocated: tuple[int, int] = (0, 0)
    """They change what is allocated at the peak by this."""
    reserved: tuple[int, int] = (0, 0)
    """They change what is reserved by this."""
    errors: tuple[int, int] | None = None
    """Errors of all else that is reserved, which were measured with them; None: they were not."""


class Ranges(Struct, frozen=True):
    """Ranges of the three figures of a peak."""

    allocated: Span
    reserved: Span
    device: Span


def allocated_span(
    bytes_: DoubtfulBytes,
    doubts: Doubts,
    calibration: Calibration,
    *,
    allocated: int,
    exact: bool = True,
    too_many: float = COUNT_SHARE,
) -> Span:
    """Return the range of the allocated bytes of one phase; the arguments are those of ``figure_ranges``."""
    below, above = _step_errors(bytes_, doubts, calibration, exact=exact, too_many=too_many)
    return _span(allocated, below, above)


def figure_ranges(
    bytes_: DoubtfulBytes,
    doubts: Doubts,
    calibration: Calibration,
    *,
    allocated: int,
    reserved: int,
    device: int,
    exact: bool = True,
    too_many: float = COUNT_SHARE,
    less: int = 0,
    more: int = 0,
    kept_less: int = 0,
    kept_more: int = 0,
    workspaces: WorkspaceDoubt = WorkspaceDoubt(),  # noqa: B008 - frozen
    others: Iterable[Span] = (),
) -> Ranges:
    """Return the ranges of an estimate.

    Args:
        bytes_: its bytes by the error that they are subject to.
        doubts: its sources of doubt.
        calibration: the shares by which such bytes may be wrong.
        allocated: the expected figures.
        reserved: likewise.
        device: likewise.
        exact: the parameters were counted exactly.
        too_many: share of the states by which an approximate count may be too high.
        less: bytes that may be missing, beside all errors.
        more: bytes that may be needed beside all errors.
        kept_less: bytes that the allocator may keep less, if ``less`` are missing.
        kept_more: bytes that it may keep more, if ``more`` are needed.
        workspaces: how far those of convolutions may lie from what is expected.
        others: ranges of the allocated bytes of other phases, any of which may turn out to be the highest.
    """
    below, above = _step_errors(bytes_, doubts, calibration, exact=exact, too_many=too_many)
    kept = calibration.allocator[doubts.allocator] * bytes_.allocator
    outside = hypot(calibration.context * bytes_.context, calibration.nccl * bytes_.nccl)
    low, high, least = allocated - round(below), allocated + round(above), 0
    for other in others:
        more = max(more, other.high_bytes - high)
        least = max(least, min(allocated, other.low_bytes))
    fewer, further = workspaces.allocated
    ours = Span(max(0, min(max(0, low, least), high) - less - fewer), max(0, high + more + further))
    least = ours.low_bytes  # nothing is reserved that is less than what is allocated
    less, more = less + kept_less + workspaces.reserved[0], more + kept_more + workspaces.reserved[1]
    below, above = workspaces.errors or (hypot(below, kept), hypot(above, kept))
    return Ranges(
        ours,
        _raised_span(reserved, less + round(below), more + round(above), least),
        _raised_span(device, less + round(hypot(below, outside)), more + round(hypot(above, outside)), least),
    )


def _raised_span(figure: int, below: int, above: int, least: int) -> Span:
    """Return the range of a figure without what lies below ``least``."""
    high = max(0, figure + above)
    return Span(min(max(0, figure - below, least), high), high)


def _step_errors(
    bytes_: DoubtfulBytes, doubts: Doubts, calibration: Calibration, *, exact: bool, too_many: float
) -> tuple[float, float]:
    """Return how far the allocated bytes may lie below and above the expected ones."""
    step, small = calibration.step[doubts.step] * bytes_.step, calibration.small_bytes
    if exact:
        error = hypot(step, small, COUNT_SHARE * bytes_.states)
        return error, error
    return (
        hypot(step, small, too_many * bytes_.states),
        hypot(step, small, APPROXIMATE_COUNT_SHARE * bytes_.states),
    )


def _span(figure: int, below: float, above: float) -> Span:
    return Span(max(0, figure - round(below)), figure + round(above))


# Bytes that a prediction has at once, and a run one after the other: gradients, and the longest sequences.


def longest_first_doubt(job: ResolvedJob, peak: Components) -> int:
    """Return how much less memory a run takes whose first micro-batch alone has the stated length.

    LitGPT's scripts before 0.2 ran the longest sample in the first micro-batch of a run (``finetune/lora.py``), when no
    gradients had accumulated; later ones had gradients, and shorter sequences of unknown lengths.

    Args:
        job: the job.
        peak: its highest moment.
    """
    if not (job.framework.keeps_fp32_logits and job.versions.runs_longest_first):
        return 0
    if job.training.gradient_accumulation == 1:
        return 0
    return min(peak.gradients, peak.activations + peak.logits)


# Bytes by which memory differs if a quantized model is prepared for training otherwise than is assumed.


def preparation_doubt(job: ResolvedJob, arch: Architecture) -> tuple[int, int]:
    """Return how much less, and how much more, memory the other preparation takes; zeros where it is known.

    Preparing a model makes its residual stream fp32, of which checkpointing keeps one tensor per block, and what its
    quantized MLPs return, which checkpointing has of one block at a time; peft's function casts embedding and head too.

    Args:
        job: the job.
        arch: the model's architecture.
    """
    if not job.adapters.assumed:
        return 0, 0
    width = max(arch.mlp_size, arch.experts_per_token * arch.expert_mlp_size)
    mlp = (3 if arch.gated else 2) * width
    per_token = arch.hidden * arch.layers + mlp if job.recomputes else mlp * arch.layers
    blocks = 2 * per_token * job.local_tokens // (job.parallel.pipeline * job.parallel.tensor)
    if job.adapters.prepared != "none":
        return blocks, 0
    return 0, blocks + 2 * (1 if arch.tied else 2) * arch.vocab * arch.hidden
