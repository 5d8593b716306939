"""What a source of snapshots must do: NVML, a recording, or anything else that knows what GPUs hold."""

from typing import Protocol

from vramtop.estimator.common.errors import VramtopError

from ..snapshot.snapshot import Snapshot


class EndOfRecording(VramtopError):  # noqa: N818 - an end, not an error
    """A recording has been played to its end; nothing more will come."""

    title = "The recording has ended"


class SnapshotSource(Protocol):
    """Somewhere snapshots come from. All three methods are called on one and the same thread."""

    def open(self) -> None:
        """Get ready to read; may be called again after ``close``.

        Raises:
            VramtopError: the source is not to be had, and why.
        """

    def read(self) -> Snapshot | None:
        """The machine as it is now; None: nothing new since the last call (a recording between two snapshots).

        Raises:
            EndOfRecording: nothing more will come.
            VramtopError: the source as a whole has failed; it may be opened again.
        """

    def close(self) -> None:
        """Give everything back; harmless when not open."""
