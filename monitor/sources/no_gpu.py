"""A machine whose GPUs cannot be seen: the dashboard opens for planning, and says why."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vramtop.estimator.common.errors import CannotTellError

from ..snapshot.snapshot import NO_DRIVER, Fault, Snapshot, Source
from .sampler import RETRY_SECONDS
from .source import SnapshotSource


@dataclass(slots=True)
class OptionalGpuSource:
    """This machine's GPUs; as long as they have never been had, snapshots without any GPU, which say why.

    Args:
        live: this machine's GPUs.
        clock: seconds that never run backwards.
        now: Unix seconds.
    """

    live: SnapshotSource
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    _why: str | None = field(default=None, init=False)
    """Why there are no GPUs; None: there are."""
    _again_at: float = field(default=0.0, init=False)
    _seen: bool = field(default=False, init=False)

    def open(self) -> None:
        """Open the live source, if it can be had.

        Raises:
            VramtopError: the GPUs were seen before, and are not to be had now.
        """
        try:
            self.live.open()
        except CannotTellError as error:
            if self._seen:
                raise
            self._why, self._again_at = error.message, self.clock() + RETRY_SECONDS
        else:
            self._why, self._seen = None, True

    def read(self) -> Snapshot | None:
        """The newest snapshot; without GPUs the live source is tried again now and then.

        Raises:
            VramtopError: of the live source.
        """
        if self._why is not None and self.clock() >= self._again_at:
            self.live.close()
            self.open()
        if self._why is None:
            return self.live.read()
        fault = Fault(field=None, code=NO_DRIVER, message=self._why)
        return Snapshot(time=self.now(), source=Source(kind="nvml", host=os.uname().nodename), gpus=(), faults=(fault,))

    def close(self) -> None:
        """Close the live source."""
        self.live.close()
