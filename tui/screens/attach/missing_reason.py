"""Why a process that is followed is seen on no GPU: what is not known is never taken for holding nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vramtop.monitor.board.board import Board
    from vramtop.monitor.snapshot.snapshot import ProcessKey


@dataclass(frozen=True, slots=True)
class MissingReason:
    """A reason."""

    words: str
    sentence: str


NOT_ON_GPU_YET = MissingReason("on no GPU yet", "It holds no memory on a GPU yet.")
_ENDED = MissingReason("ended", "It has ended.")


def missing_reason(
    board: Board | None, keys: Sequence[ProcessKey], is_running: Callable[[ProcessKey], bool]
) -> MissingReason:
    """Why none of these processes is seen on a GPU.

    Args:
        board: the newest figures.
        keys: the processes.
        is_running: whether a process of this machine still runs.
    """
    if board is None:
        return NOT_ON_GPU_YET
    if board.snapshot.source.kind == "nvml" and not any(map(is_running, keys)):
        return _ENDED
    unread = [gpu.reading.label for gpu in board.gpus if gpu.reading.processes is None]
    if unread:
        return MissingReason("GPU n/a", f"What it holds is not known: GPU {', '.join(unread)} cannot be read.")
    return NOT_ON_GPU_YET
