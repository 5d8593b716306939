"""Finds anomalies on the GPUs over time: the rules' findings that last long enough."""

import os
from collections.abc import Callable

import msgspec

from vramtop.estimator.common.trust import user_name

from ..snapshot.snapshot import GpuProcess, Snapshot
from .anomaly import Anomaly, IdleTracker, ProcessOrigin, RuleContext, read_origin
from .jobs import find_helpers, find_rank_conflicts
from .leftovers import find_ended, find_forgotten, find_hidden_memory

OriginReader = Callable[[int, float | None], ProcessOrigin | None]
SCAN_INTERVAL_SECONDS = 2.0
"""Anomalies last minutes; scanning every snapshot would only cost time."""
_MIN_DURATION_SECONDS = 10.0
"""Shorter anomalies are not reported: starting and ending processes look anomalous for a moment."""
_LINGER_SECONDS = 10.0
"""Time for which an anomaly that is no longer found is still reported, if its processes exist and its GPU answers."""


class AnomalyDetector(msgspec.Struct, eq=False):
    """Finds anomalies, snapshot by snapshot. Not thread-safe.

    Args:
        min_duration_seconds: shorter anomalies are not reported; 0 for a single snapshot.
        origin_of: reads a process's origin; called once per process, and never for recordings.
        viewer: user whose forgotten processes are reported; None: the one who runs vramtop.
    """

    min_duration_seconds: float = _MIN_DURATION_SECONDS
    origin_of: OriginReader = read_origin
    viewer: str | None = None
    _idle: IdleTracker = msgspec.field(default_factory=IdleTracker)
    _origins: dict[tuple[int, float | None, int | None], ProcessOrigin | None] = {}
    _first_found: dict[tuple[object, ...], float] = {}
    _last_found: dict[tuple[object, ...], tuple[float, Anomaly]] = {}
    _scanned_at: float | None = None
    _reported: tuple[Anomaly, ...] = ()

    def update(self, snapshot: Snapshot) -> tuple[Anomaly, ...]:
        """Return the present anomalies, by GPU.

        Args:
            snapshot: later than the one before; an earlier one (a recording that begins again) resets the detector.
        """
        now = snapshot.time
        if self._scanned_at is not None and 0 <= now - self._scanned_at < SCAN_INTERVAL_SECONDS:
            return self._reported
        if self._scanned_at is not None and now < self._scanned_at:
            self._idle, self._first_found, self._last_found = IdleTracker(), {}, {}
        self._scanned_at = now
        found = {anomaly.identity: anomaly for anomaly in self._find(snapshot)}
        self._last_found = self._lingering(snapshot) | {identity: (now, each) for identity, each in found.items()}
        self._first_found = {identity: self._first_found.get(identity, now) for identity in self._last_found}
        lasting = [
            anomaly
            for identity, (_, anomaly) in self._last_found.items()
            if now - self._first_found[identity] >= self.min_duration_seconds
        ]
        self._reported = tuple(sorted(lasting, key=lambda each: (each.gpu, -each.held_bytes, each.pids)))
        return self._reported

    def _lingering(self, snapshot: Snapshot) -> dict[tuple[object, ...], tuple[float, Anomaly]]:
        """Return the earlier anomalies that may still exist, even if they are not found in this snapshot."""
        present = {process.pid for _, process in snapshot.processes()}
        readable = {gpu.index for gpu in snapshot.gpus if gpu.used_bytes is not None or gpu.processes is not None}
        return {
            identity: (time, anomaly)
            for identity, (time, anomaly) in self._last_found.items()
            if snapshot.time - time <= _LINGER_SECONDS and anomaly.gpu in readable and present.issuperset(anomaly.pids)
        }

    def _find(self, snapshot: Snapshot) -> list[Anomaly]:
        context = self._rule_context(snapshot)
        self._idle.update(snapshot)
        helpers = find_helpers(context)
        helper_pids = {pid for anomaly in helpers for pid in anomaly.pids}
        found = [
            *helpers,
            *find_rank_conflicts(context, helper_pids),
            *find_forgotten(context, helper_pids),
            *find_ended(context),
            *find_hidden_memory(context),
        ]
        keys = {(process.pid, process.start_time, process.parent) for process in context.processes.values()}
        self._origins = {key: origin for key, origin in self._origins.items() if key in keys}
        return found

    def _rule_context(self, snapshot: Snapshot) -> RuleContext:
        processes: dict[int, GpuProcess] = {}
        home_gpus: dict[int, int] = {}
        for gpu, process in snapshot.processes():
            before = processes.get(process.pid)
            if before is None or (before.used_bytes or 0) < (process.used_bytes or 0):
                processes[process.pid], home_gpus[process.pid] = process, gpu.index
        live = snapshot.source.is_live
        if live and self.viewer is None:
            self.viewer = user_name(os.getuid())
        return RuleContext(
            snapshot=snapshot,
            live=live,
            viewer=self.viewer,
            idle=self._idle,
            origin_of=self._origin if live else lambda _: None,
            home_gpus=home_gpus,
            processes=processes,
        )

    def _origin(self, process: GpuProcess) -> ProcessOrigin | None:
        """Return a process's origin: read once, and again when its parent changes."""
        key = process.pid, process.start_time, process.parent
        if key not in self._origins:
            self._origins[key] = self.origin_of(process.pid, process.start_time)
        return self._origins[key]
