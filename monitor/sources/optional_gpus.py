"""Source for machines whose GPUs cannot be read: the dashboard opens for planning, and shows the reason."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vramtop.estimator.common.errors import CannotTellError

from ..snapshot.figures import NO_DRIVER, Fault
from ..snapshot.snapshot import Snapshot, Source
from .sampler import RETRY_SECONDS, SnapshotSource


@dataclass(slots=True)
class OptionalGpuSource:
    """This machine's GPUs; until they have been read once, snapshots without GPUs that state the reason.

    Args:
        live: source of this machine's GPUs.
        clock: monotonic seconds.
        now: Unix seconds.
    """

    live: SnapshotSource
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    _unavailable_reason: str | None = field(default=None, init=False)
    """Why the GPUs cannot be read; None: they can."""
    _retry_at: float = field(default=0.0, init=False)
    _was_available: bool = field(default=False, init=False)

    def open(self) -> None:
        """Open the live source, if it is available.

        Raises:
            VramtopError: the GPUs were available before, and are not now.
        """
        try:
            self.live.open()
        except CannotTellError as error:
            if self._was_available:
                raise
            self._unavailable_reason, self._retry_at = error.message, self.clock() + RETRY_SECONDS
        else:
            self._unavailable_reason, self._was_available = None, True

    def read(self) -> Snapshot | None:
        """Return the latest snapshot; without GPUs, the live source is tried again every ``RETRY_SECONDS``.

        Raises:
            VramtopError: the live source has failed.
        """
        if self._unavailable_reason is not None and self.clock() >= self._retry_at:
            self.live.close()
            self.open()
        if self._unavailable_reason is None:
            return self.live.read()
        fault = Fault(field=None, code=NO_DRIVER, message=self._unavailable_reason)
        return Snapshot(time=self.now(), source=Source(kind="nvml", host=os.uname().nodename), gpus=(), faults=(fault,))

    def close(self) -> None:
        """Close the live source."""
        self.live.close()
