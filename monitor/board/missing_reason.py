"""Why a followed process is on no GPU: it holds no memory yet, has ended, or a GPU cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..snapshot.snapshot import gpu_list

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..snapshot.snapshot import ProcessKey
    from .board import Board


@dataclass(frozen=True, slots=True)
class MissingReason:
    """A reason, in a few words and as a sentence."""

    short: str
    sentence: str


NOT_ON_GPU_YET = MissingReason("on no GPU yet", "It does not hold GPU memory yet.")
_ENDED = MissingReason("ended", "It has ended.")


def missing_reason(
    board: Board | None, keys: Sequence[ProcessKey], is_running: Callable[[ProcessKey], bool]
) -> MissingReason:
    """Return why none of these processes is on a GPU.

    Args:
        board: the latest board.
        keys: the processes.
        is_running: returns True if a process of this machine still runs.
    """
    if board is None:
        return NOT_ON_GPU_YET
    if board.snapshot.source.is_live and not any(map(is_running, keys)):
        return _ENDED
    unread = [gpu.reading.label for gpu in board.gpus if gpu.reading.processes is None]
    if unread:
        return MissingReason("GPU n/a", f"Its memory is not known: GPU {gpu_list(unread)} cannot be read.")
    return NOT_ON_GPU_YET
