"""Tensors as words: for the table of a step's screen and for the command line alike."""

from collections.abc import Sequence

from vramtop.estimator.budget.budget import LargeTensor
from vramtop.estimator.common.sizes import format_gib

from ..draw.palette import COMPONENTS
from ..draw.terminal import clean


def tensor_rows(tensors: Sequence[LargeTensor]) -> list[tuple[str, str, str, str, str]]:
    """(letter, GiB, module, type, shape) of each."""
    return [
        (
            COMPONENTS[tensor.component].letter,
            format_gib(tensor.bytes, digits=2),
            clean(tensor.module) or "(no module)",
            tensor.dtype,
            " x ".join(str(size) for size in tensor.shape) or "scalar",
        )
        for tensor in tensors
    ]
