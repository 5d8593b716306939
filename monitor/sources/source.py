"""Interface of a source of snapshots: NVML, a recording, or any other."""

from typing import Protocol

from vramtop.estimator.common import VramtopError

from ..snapshot import Snapshot


class EndOfRecording(VramtopError):  # noqa: N818 - an end, not an error
    """A recording has been played to its end."""

    title = "The recording has ended"


class SnapshotSource(Protocol):
    """A source of snapshots. All three methods are called on the same thread."""

    def open(self) -> None:
        """Prepare for reading; may be called again after ``close``.

        Raises:
            VramtopError: the source is unavailable; the message states why.
        """

    def read(self) -> Snapshot | None:
        """Return the latest snapshot; None if there is none since the last call (a recording between two snapshots).

        Raises:
            EndOfRecording: there are no more snapshots.
            VramtopError: the source as a whole has failed; it may be opened again.
        """

    def close(self) -> None:
        """Release all resources; does nothing if the source is not open."""
