"""The watch over alerts: what the user is told, once per change."""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB, format_gib

from ..board.board import stale_after_seconds
from ..host.plain_text import displayed_line, duration_text
from ..snapshot.faults import NO_DRIVER, NOT_LISTED
from ..snapshot.gpu_list import gpu_list

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from ..board.board import Board, ProcessRow
    from ..snapshot.snapshot import GpuReading, ProcessKey

# The rules: what an alert is about, and how long its condition must hold and be gone.
#
# Names, thresholds and times are those of ``export/vramtop_rules.yml``: Prometheus and the terminal say the same,
# unless the user's settings choose other times or leave a rule out (``chosen_alerts``).


Severity = Literal["critical", "warning"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning")
"""Worst first."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of alert."""

    name: str
    """Name of the rule, as in the Prometheus rules."""
    title: str
    """In a few words."""
    condition: str
    """What must hold, for the documentation."""
    severity: Severity
    fires_after: float
    """Seconds for which the condition must hold."""
    clears_after: float = 60.0
    """Seconds for which it must be gone; Prometheus has no such time here."""


OVER_BUDGET = Rule(
    name="VramtopJobOverBudget",
    title="over its budget",
    condition="a run is above the upper bound of its budget on some rank",
    severity="warning",
    fires_after=300,
)
GROWING = Rule(
    name="VramtopJobGrowing",
    title="growing",
    condition="a run that should be steady grows, and fills its GPU within 4 hours",
    severity="warning",
    fires_after=300,
    clears_after=300,
)
UNATTRIBUTED = Rule(
    name="VramtopUnattributedMemory",
    title="memory of no visible process",
    condition="more than 2 GiB of a GPU belong to no visible process",
    severity="warning",
    fires_after=900,
)
GPU_LOST = Rule(
    name="VramtopGpuLost",
    title="GPU lost",
    condition="a GPU cannot be read, or is not listed any more; one that sleeps is not lost",
    severity="critical",
    fires_after=120,
)
NO_READINGS = Rule(
    name="VramtopSamplerStale",
    title="no recent reading",
    condition="there is no recent reading",
    severity="critical",
    fires_after=60,
    clears_after=10,
)
FULL_WITHIN_SECONDS = 4 * 3600.0
"""Growth that fills the GPU later than that is no alert."""
MIN_UNATTRIBUTED_BYTES = 2 * GIB
"""Contexts of invisible helpers take some hundred MiB."""


# The conditions of the rules on one board: which hold, and which cannot be told.
#
# A figure that is missing neither raises nor ends an alert. The ranks of a run are one condition, told of the worst
# rank.


Key = tuple["Hashable", ...]
"""What an alert is about: the name of its rule, and a run or a GPU."""
_MAX_CHARACTERS = 120
"""Length of a name in an alert: of a user or a job."""
MAX_SENTENCE = 400
"""Length of a driver's sentence in an alert."""


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """The readings at one moment."""

    board: Board | None
    """The latest board; None: there was none yet."""
    age_seconds: float
    """Age of that board; without one, the time since the sampler was started."""
    interval: float
    """Seconds between two readings."""
    failure: str | None = None
    """Why the source gives no readings now, in one sentence."""

    @property
    def problem(self) -> str | None:
        """Why the board is not that of this moment; None: it is."""
        if self.failure is not None:
            return self.failure
        if self.age_seconds > stale_after_seconds(self.interval):
            return f"the last reading is {duration_text(self.age_seconds)} old"
        faults = self.board.snapshot.faults if self.board else ()
        return next((fault.message for fault in faults if fault.code == NO_DRIVER), None)


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong now."""

    rule: Rule
    key: Key
    sentence: str
    gpus: tuple[str, ...] = ()
    """Labels of the GPUs or MIG devices, the worst first."""
    uuids: tuple[str, ...] = ()
    """The uuid of each of the GPUs or MIG devices, in the order of ``gpus``; empty: unknown."""
    job: str = ""
    user: str = ""
    pids: tuple[int, ...] = ()
    """Processes of the ranks that it is true of, the worst first."""
    value_bytes: int | None = None
    """Bytes above the prediction, or of no visible process."""
    full_seconds: float | None = None
    """Time until the GPU is full."""


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of one board."""

    present: tuple[Condition, ...] = ()
    unknown: frozenset[Key] = frozenset()
    """Conditions that cannot be told now."""
    unknown_gpus: frozenset[str] = frozenset()
    """Labels of the GPUs and MIG devices whose processes cannot be read now."""
    all_unknown: bool = False
    """Nothing can be told now, but that there are no readings."""

    def is_unknown(self, condition: Condition) -> bool:
        """Return True if it cannot be told whether an earlier condition still holds."""
        if condition.rule is NO_READINGS:
            return False
        if self.all_unknown or condition.key in self.unknown:
            return True
        return condition.rule in (OVER_BUDGET, GROWING) and not self.unknown_gpus.isdisjoint(condition.gpus)


def find_conditions(feed: Feed) -> Conditions:
    """Return the conditions at this moment; of what is not displayed (``--user``, ``--gpu``) there are none."""
    problem = feed.problem
    if problem is not None:
        sentence = f"there is no recent reading of the GPUs: {plain_text(problem, MAX_SENTENCE)}"
        stale = Condition(rule=NO_READINGS, key=(NO_READINGS.name,), sentence=sentence)
        return Conditions(present=(stale,), all_unknown=True)
    if feed.board is None:
        return Conditions(all_unknown=True)
    found = _Found(feed.board)
    found.look_at_processes()
    found.look_at_gpus()
    return Conditions(
        present=tuple(found.present), unknown=frozenset(found.unknown), unknown_gpus=frozenset(found.unknown_gpus)
    )


class _Found(msgspec.Struct):
    """What was found on a board so far."""

    board: Board
    present: list[Condition] = msgspec.field(default_factory=list)
    unknown: set[Key] = msgspec.field(default_factory=set)
    unknown_gpus: set[str] = msgspec.field(default_factory=set)

    def look_at_processes(self) -> None:
        """Find runs that are over their budget, or that grow and fill a GPU."""
        board = self.board
        run_of: dict[ProcessKey, ProcessKey] = {key: run.pids[0] for run in board.runs for key in run.pids}
        over: dict[ProcessKey, list[ProcessRow]] = defaultdict(list)
        growing: dict[ProcessKey, list[ProcessRow]] = defaultdict(list)
        for gpu in board.gpus:
            if _is_unreadable(gpu.reading):
                self.unknown_gpus |= {gpu.reading.label, *(device.reading.label for device in gpu.devices)}
                continue
            for row in gpu.rows:
                if row.comparison is None or not board.displays(row):
                    continue
                run = run_of.get(row.process.key, row.process.key)
                status = row.comparison.status
                if status == "over":
                    over[run].append(row)
                full = row.full_seconds if status == "growing" else None
                if full is not None and full < FULL_WITHIN_SECONDS:
                    growing[run].append(row)
                if status == "unknown" or (status == "growing" and full is None):
                    self.unknown.add((GROWING.name, run))
                if status == "unknown" or (status == "growing" and _is_above(row)):
                    self.unknown.add((OVER_BUDGET.name, run))
        self.present += (_over(run, rows) for run, rows in over.items())
        self.present += (_growing(run, rows) for run, rows in growing.items())

    def look_at_gpus(self) -> None:
        """Find GPUs that are lost, and memory that belongs to no visible process."""
        board = self.board
        for fault in board.snapshot.faults:
            if fault.code == NOT_LISTED:
                message = plain_text(fault.message, MAX_SENTENCE)
                self.present.append(Condition(rule=GPU_LOST, key=(GPU_LOST.name, message), sentence=message))
        for gpu in board.gpus:
            reading = gpu.reading
            if not board.displays_gpu(reading):
                continue
            if reading.loss is not None:
                sentence = f"GPU {reading.label} cannot be read: {plain_text(reading.loss.message, MAX_SENTENCE)}"
                self.present.append(_gpu_condition(GPU_LOST, reading, sentence))
            size = gpu.unattributed_bytes if reading.attributed_bytes is not None else None
            if size is None or _is_unreadable(reading):
                self.unknown.add((UNATTRIBUTED.name, reading.key))
            elif size > MIN_UNATTRIBUTED_BYTES:
                sentence = f"{format_gib(size)} GiB of GPU {reading.label} belong to no visible process"
                self.present.append(_gpu_condition(UNATTRIBUTED, reading, sentence, value_bytes=size))


def _gpu_condition(rule: Rule, reading: GpuReading, sentence: str, *, value_bytes: int | None = None) -> Condition:
    return Condition(
        rule=rule,
        key=(rule.name, reading.key),
        sentence=sentence,
        gpus=(reading.label,),
        uuids=(reading.uuid or "",),
        value_bytes=value_bytes,
    )


def _is_unreadable(reading: GpuReading) -> bool:
    return reading.is_stale or reading.processes is None


def _is_above(row: ProcessRow) -> bool:
    """Return True if a process is above the upper bound of its budget, whatever its status says first."""
    held = row.process.used_bytes
    return row.budget is not None and held is not None and held > row.budget.peak.shown_high_bytes


def _over(run: ProcessKey, rows: list[ProcessRow]) -> Condition:
    def excess(row: ProcessRow) -> int:
        return (row.comparison.difference_bytes if row.comparison else None) or 0

    rows = sorted(rows, key=excess, reverse=True)
    most = excess(rows[0])
    up_to = "up to " if len(rows) > 1 else ""
    words = f"holds {up_to}{format_gib(most)} GiB more than predicted {_on(rows)}"
    return _condition(OVER_BUDGET, run, rows, words, value_bytes=most)


def _growing(run: ProcessKey, rows: list[ProcessRow]) -> Condition:
    def seconds(row: ProcessRow) -> float:
        return row.full_seconds or 0.0

    rows = sorted(rows, key=seconds)
    words = f"grows and fills GPU {rows[0].gpu.label} in about {duration_text(seconds(rows[0]))}"
    return _condition(GROWING, run, rows, words, full_seconds=seconds(rows[0]))


def _condition(
    rule: Rule,
    run: ProcessKey,
    rows: list[ProcessRow],
    words: str,
    *,
    value_bytes: int | None = None,
    full_seconds: float | None = None,
) -> Condition:
    first = rows[0]
    job, user = plain_text(first.job.label) if first.job else "", plain_text(first.process.user)
    return Condition(
        rule=rule,
        key=(rule.name, run),
        sentence=f"{whose_job(job, user)} (process {first.process.pid}) {words}",
        gpus=tuple(_each_once(rows, lambda row: row.gpu.label)),
        uuids=tuple(_each_once(rows, lambda row: row.gpu.uuid or "")),
        job=job,
        user=user,
        pids=tuple(dict.fromkeys(row.process.pid for row in rows)),
        value_bytes=value_bytes,
        full_seconds=full_seconds,
    )


def _on(rows: list[ProcessRow]) -> str:
    in_order = sorted(rows, key=lambda row: row.gpu.order)
    return f"on GPU {gpu_list(_each_once(in_order, lambda row: row.gpu.label), most=4)}"


def _each_once(rows: list[ProcessRow], name: Callable[[ProcessRow], str]) -> Iterator[str]:
    yield from dict.fromkeys(map(name, rows))


def whose_job(job: str, user: str) -> str:
    """Return a job and its user in words; empty: unknown."""
    return f"{job or 'a job'} of {user}" if user else job or "a job"


def plain_text(text: str | None, most: int = _MAX_CHARACTERS) -> str:
    """Return text of others in one printable line of bounded length, without secrets."""
    return displayed_line(text, most)


# The alerts that the user wants, and after how long each fires: the settings below ``alerts``.


RULES: Mapping[str, Rule] = {
    "over_budget": OVER_BUDGET,
    "growing": GROWING,
    "unattributed": UNATTRIBUTED,
    "gpu_lost": GPU_LOST,
    "no_readings": NO_READINGS,
}
"""The rules by the word that settings have for them."""


def alerts_off(settings: Mapping[str, object]) -> frozenset[str]:
    """Return the names of the rules that ``alerts.off`` of the settings leaves out."""
    words = settings.get("alerts.off")
    return frozenset(RULES[word].name for word in (words if isinstance(words, tuple) else ()) if word in RULES)


# States of the alerts: a condition fires after it has held for a while, and clears after it was gone for a while.


_MAX_RESOLVED = 20


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert, keyed by what it is about."""

    condition: Condition
    """The condition as it was when it held last."""
    since: float
    """Unix seconds at which the condition was first seen."""
    fires_after: float = 0.0
    """Seconds for which it must hold."""
    held_seconds: float = 0.0
    """Time for which it has held without a break, as far as there were readings."""
    gone_seconds: float = 0.0
    """Time for which it has been gone since it fired."""
    firing: bool = False
    resolved_at: float | None = None
    """Unix seconds at which it cleared; None: it has not."""

    @property
    def seconds_left(self) -> float:
        """Time for which the condition must hold on until the alert fires."""
        return max(0.0, self.fires_after - self.held_seconds)


@dataclass(slots=True)
class AlertStates:
    """The alerts of one machine. Not safe for concurrent use.

    Args:
        max_step: longest time between two updates that counts: what was in between, such as a suspended machine,
            was not seen.
        left_out: names of the rules that the user does not want.
    """

    max_step: float
    left_out: frozenset[str] = frozenset()
    _alerts: dict[Key, Alert] = field(default_factory=dict, init=False)
    _present: frozenset[Key] = frozenset()
    """Keys of the conditions that held at the last update."""
    _absent: frozenset[Key] = frozenset()
    """Keys of the alerts whose condition did not hold at the last update, as far as that could be told."""
    _updated_at: float | None = None
    _resolved: deque[Alert] = field(default_factory=lambda: deque(maxlen=_MAX_RESOLVED), init=False)

    def update(self, conditions: Conditions, now: float, time: float) -> None:
        """Take note of what holds now.

        Args:
            conditions: at this moment.
            now: monotonic seconds.
            time: Unix seconds.
        """
        step = 0.0 if self._updated_at is None else min(max(0.0, now - self._updated_at), self.max_step)
        self._updated_at = now
        present = {each.key: each for each in conditions.present if each.rule.name not in self.left_out}
        gone = {
            key: alert
            for key, alert in self._alerts.items()
            if key not in present and not conditions.is_unknown(alert.condition)
        }
        for key, condition in present.items():
            before = self._alerts.get(key) or Alert(
                condition=condition, since=time, fires_after=condition.rule.fires_after
            )
            if before.firing and before.condition is condition and not before.gone_seconds:
                continue  # the same reading again
            held = before.held_seconds + (step if key in self._present else 0.0)
            firing = before.firing or held >= before.fires_after
            self._alerts[key] = replace(before, condition=condition, held_seconds=held, gone_seconds=0.0, firing=firing)
        for key, alert in gone.items():
            seconds = alert.gone_seconds + (step if key in self._absent else 0.0)
            if alert.firing and seconds < alert.condition.rule.clears_after:
                self._alerts[key] = replace(alert, gone_seconds=seconds)
                continue
            del self._alerts[key]
            if alert.firing:
                self._resolved.append(replace(alert, firing=False, resolved_at=time))
        self._present, self._absent = frozenset(present), frozenset(gone)

    @property
    def firing(self) -> tuple[Alert, ...]:
        """The alerts that fire, worst first."""
        return worst_first(self.firing_by_key.values())

    @property
    def firing_by_key(self) -> dict[Key, Alert]:
        """The alerts that fire, in no order."""
        return {key: alert for key, alert in self._alerts.items() if alert.firing}

    @property
    def waiting(self) -> tuple[Alert, ...]:
        """Conditions that hold, though not for long enough yet."""
        return worst_first(alert for alert in self._alerts.values() if not alert.firing)

    @property
    def resolved(self) -> tuple[Alert, ...]:
        """The alerts that cleared last, the latest first."""
        return tuple(reversed(self._resolved))


def worst_first(alerts: Iterable[Alert]) -> tuple[Alert, ...]:
    """Return alerts in the order of their severity, then of their age."""

    def order(alert: Alert) -> tuple[int, float, str]:
        return SEVERITIES.index(alert.condition.rule.severity), alert.since, str(alert.condition.key)

    return tuple(sorted(alerts, key=order))


_MAX_STEP_SECONDS = 60.0
_MAX_FACTS = 256
"""GPUs or processes in one environment variable, which may have 128 KiB (``MAX_ARG_STRLEN`` of Linux)."""


class Announcement(msgspec.Struct, frozen=True):
    """A change that the user is told of."""

    alert: Alert
    state: Literal["firing", "resolved"]

    @property
    def sentence(self) -> str:
        """The change in words."""
        sentence = self.alert.condition.sentence
        return sentence if self.state == "firing" else f"resolved: {sentence}"

    def facts(self) -> dict[str, str]:
        """Return the facts as environment variables of the user's command; an unknown fact is an empty text."""
        condition = self.alert.condition
        value, full = condition.value_bytes, condition.full_seconds
        return {
            "VRAMTOP_ALERT": condition.rule.name,
            "VRAMTOP_ALERT_STATE": self.state,
            "VRAMTOP_ALERT_SEVERITY": condition.rule.severity,
            "VRAMTOP_ALERT_SENTENCE": condition.sentence,
            "VRAMTOP_ALERT_SINCE": f"{self.alert.since:.0f}",
            "VRAMTOP_ALERT_BYTES": "" if value is None else str(value),
            "VRAMTOP_ALERT_FULL_SECONDS": "" if full is None else f"{full:.0f}",
            "VRAMTOP_HOST": os.uname().nodename,
            "VRAMTOP_GPU": condition.gpus[0] if condition.gpus else "",
            "VRAMTOP_GPUS": ",".join(condition.gpus[:_MAX_FACTS]),
            "VRAMTOP_GPU_UUIDS": ",".join(condition.uuids[:_MAX_FACTS]),
            "VRAMTOP_JOB": condition.job,
            "VRAMTOP_USER": condition.user,
            "VRAMTOP_PID": str(condition.pids[0]) if condition.pids else "",
            "VRAMTOP_PIDS": ",".join(map(str, condition.pids[:_MAX_FACTS])),
        }


@dataclass(slots=True)
class AlertWatch:
    """The alerts of this machine, and which of them the user knows of. Not safe for concurrent use.

    Args:
        interval: seconds between two readings, and between two ticks if those are rarer.
        expects_gpus: a machine whose GPUs could never be read is an alert too, not only one that has lost them.
        left_out: names of the rules that the user does not want.
    """

    interval: float
    expects_gpus: bool = False
    left_out: frozenset[str] = frozenset()
    _known: dict[Key, Alert] = field(default_factory=dict, init=False)
    """The alerts whose firing was announced, and whose end was not."""
    states: AlertStates = field(init=False)

    def __post_init__(self) -> None:
        self.states = AlertStates(max(_MAX_STEP_SECONDS, 3 * self.interval), self.left_out)

    def tick(self, feed: Feed, now: float) -> tuple[Announcement, ...]:
        """Return what the user is to be told now: each alert when it fires and when it clears.

        Args:
            feed: the readings.
            now: monotonic seconds.
        """
        self.expects_gpus = self.expects_gpus or bool(feed.board and feed.board.gpus)
        if self.expects_gpus:
            self.states.update(find_conditions(feed), now, time.time())
        firing, known = self.states.firing_by_key, self._known
        begun = [alert for key, alert in firing.items() if key not in known]
        ended = [alert for key, alert in known.items() if key not in firing]
        self._known = firing
        return (
            *(Announcement(alert, "firing") for alert in worst_first(begun)),
            *(Announcement(alert, "resolved") for alert in worst_first(ended)),
        )
