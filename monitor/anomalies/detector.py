"""What is odd on the GPUs, said by name: helpers with a CUDA context, ranks on one GPU, forgotten processes."""

import os
import pwd
from collections.abc import Callable

from ..host.idleness import IdleTracker
from ..host.process_origin import ProcessOrigin, read_origin
from ..snapshot.snapshot import GpuProcess, Snapshot
from .anomaly import Anomaly, RuleContext
from .job_rules import find_helpers, find_rank_conflicts
from .leftover_rules import find_ended, find_forgotten, find_hidden_memory

OriginReader = Callable[[int, float | None], ProcessOrigin | None]

SCAN_INTERVAL_SECONDS = 2.0
"""What is odd stays so for minutes; looking at every snapshot would only cost."""
_MIN_DURATION_SECONDS = 10.0
"""So long something must be odd before it is said: processes that start and end pass through odd moments."""
_LINGER_SECONDS = 10.0
"""So long it is still said when it is not seen any more, as long as its processes are there and its GPU answers."""


class AnomalyDetector:
    """Finds what is odd, snapshot by snapshot. Not for several threads.

    Args:
        min_duration_seconds: for how long something must be odd before it is said; 0 where there is one snapshot only.
        origin_of: reads where a process comes from; called once for each, and never for recordings.
        viewer: the user for whom to look for forgotten processes; None: the one who runs this.
    """

    def __init__(
        self,
        *,
        min_duration_seconds: float = _MIN_DURATION_SECONDS,
        origin_of: OriginReader = read_origin,
        viewer: str | None = None,
    ) -> None:
        self._after = min_duration_seconds
        self._read = origin_of
        self._viewer = viewer
        self._idle = IdleTracker()
        self._origins: dict[tuple[int, float | None, int | None], ProcessOrigin | None] = {}
        self._first: dict[tuple[object, ...], float] = {}
        self._last: dict[tuple[object, ...], tuple[float, Anomaly]] = {}
        self._looked_at: float | None = None
        self._said: tuple[Anomaly, ...] = ()

    def update(self, snapshot: Snapshot) -> tuple[Anomaly, ...]:
        """What is odd now, by GPU.

        Args:
            snapshot: newer than the one before; a recording that begins again is looked at anew.
        """
        now = snapshot.time
        if self._looked_at is not None and 0 <= now - self._looked_at < SCAN_INTERVAL_SECONDS:
            return self._said
        if self._looked_at is not None and now < self._looked_at:
            self._idle, self._first, self._last = IdleTracker(), {}, {}
        self._looked_at = now
        found = {anomaly.identity: anomaly for anomaly in self._find(snapshot)}
        present = {process.pid for _, process in snapshot.processes()}
        told = {gpu.index for gpu in snapshot.gpus if gpu.used_bytes is not None or gpu.processes is not None}
        self._last = {
            identity: (time, anomaly)
            for identity, (time, anomaly) in self._last.items()
            if now - time <= _LINGER_SECONDS and anomaly.gpu_index in told and present.issuperset(anomaly.pids)
        } | {identity: (now, anomaly) for identity, anomaly in found.items()}
        self._first = {identity: self._first.get(identity, now) for identity in self._last}
        said = [anomaly for identity, (_, anomaly) in self._last.items() if now - self._first[identity] >= self._after]
        self._said = tuple(sorted(said, key=lambda anomaly: (anomaly.gpu_index, -anomaly.held_bytes, anomaly.pids)))
        return self._said

    def _find(self, snapshot: Snapshot) -> list[Anomaly]:
        context = self._rule_context(snapshot)
        self._idle.update(snapshot)
        helping = find_helpers(context)
        busy = {pid for anomaly in helping for pid in anomaly.pids}
        found = [
            *helping,
            *find_rank_conflicts(context, busy),
            *find_forgotten(context, busy),
            *find_ended(context),
            *find_hidden_memory(context),
        ]
        keys = {(process.pid, process.start_time, process.parent) for process in context.processes.values()}
        self._origins = {key: origin for key, origin in self._origins.items() if key in keys}
        return found

    def _rule_context(self, snapshot: Snapshot) -> RuleContext:
        processes: dict[int, GpuProcess] = {}
        homes: dict[int, int] = {}
        for gpu, process in snapshot.processes():
            before = processes.get(process.pid)
            if before is None or (before.used_bytes or 0) < (process.used_bytes or 0):
                processes[process.pid], homes[process.pid] = process, gpu.index
        live = snapshot.source.kind == "nvml"
        if live and self._viewer is None:
            self._viewer = _own_name()
        return RuleContext(
            snapshot=snapshot,
            live=live,
            viewer=self._viewer,
            idle=self._idle,
            origin_of=self._origin if live else lambda _: None,
            homes=homes,
            processes=processes,
        )

    def _origin(self, process: GpuProcess) -> ProcessOrigin | None:
        """Where a process comes from: read once, and again when it has another parent."""
        key = process.pid, process.start_time, process.parent
        if key not in self._origins:
            self._origins[key] = self._read(process.pid, process.start_time)
        return self._origins[key]


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
