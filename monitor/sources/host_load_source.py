"""Adds the load of this machine to the snapshots of another source, while a screen shows it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vramtop.estimator.common.records import replace

from ..host.host_load import HostLoadReader
from ..snapshot.demand import CurrentDemand
from ..snapshot.snapshot import HostLoad, Snapshot
from .sampler import SnapshotSource

HOST_INTERVAL_SECONDS = 2.0
"""Minimum interval of readings: figures that change more often are hard to read, and cost more to draw."""


@dataclass(slots=True)
class HostLoadSource:
    """A source of this machine's snapshots, with its load if that is shown.

    Args:
        source: the GPUs.
        demand: tells whether the load is shown.
        reader: of the load.
        clock: monotonic seconds.
    """

    source: SnapshotSource
    demand: CurrentDemand
    reader: HostLoadReader = field(default_factory=HostLoadReader)
    clock: Callable[[], float] = time.monotonic
    _latest: HostLoad | None = field(default=None, init=False)
    _next_at: float = field(default=0.0, init=False)

    def open(self) -> None:
        """Open the source; the load of the processors is measured from now on."""
        if self.demand.value.host:
            self.reader.read()
        self.source.open()

    def read(self) -> Snapshot | None:
        """Return the source's snapshot.

        Raises:
            VramtopError: the source has failed.
        """
        snapshot = self.source.read()
        if snapshot is None or not self.demand.value.host:
            self._latest = None
            return snapshot
        if self._latest is None or self.clock() >= self._next_at:
            self._latest, self._next_at = self.reader.read(), self.clock() + HOST_INTERVAL_SECONDS
        return replace(snapshot, host=self._latest)

    def close(self) -> None:
        """Close the source."""
        self.source.close()
