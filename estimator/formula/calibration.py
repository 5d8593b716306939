"""The calibration of ranges: by which share the bytes in doubt may be wrong, for each source of doubt.

``tests/accuracy/calibrate.py`` derives the numbers from published figures, and a test compares them with these.
"""

import msgspec

from ..common.records import replace
from ..common.sizes import MIB
from .doubts import AllocatorDoubt, StepDoubt

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
