"""Ranges of an estimate: how far what torch allocates, what it reserves, and the device's memory may lie from it."""

from collections.abc import Iterable
from math import hypot

from msgspec import Struct

from ..budget import Components, Span
from .calibration import APPROXIMATE_COUNT_SHARE, COUNT_SHARE, Calibration
from .doubts import Doubts

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
    return Span(max(0, allocated - round(below)), allocated + round(above))


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
