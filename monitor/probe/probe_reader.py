"""Reads what the probe inside a training process publishes, through the process's open files."""

import os
import re
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from vramtop.estimator.common.untrusted_files import check_nesting

from ..host.process_stat import namespace_pids, open_files
from ..snapshot.figures import MAX_UNIX_SECONDS
from ..snapshot.snapshot import AllocatorCounters, ProcessCounters

_MAGIC = b"VRAMTOP1"
_HEADER = struct.Struct("<8sQII")
_MAX_BYTES = 1 << 20
_FIRST_READ_BYTES = 4096
"""Header and figures of a process with a dozen devices."""
_LINK = "/memfd:vramtop-probe (deleted)"
_MAX_ATTEMPTS = 5
_DOTTED = re.compile(r"[\w.<>]{1,200}", re.ASCII)
STALE_SECONDS = 5.0
"""Age from which a sample shows that its process is stopped or hangs."""

_ALLOCATOR_FIELDS = AllocatorCounters.__struct_fields__


class DeviceCounters(AllocatorCounters, frozen=True, kw_only=True):
    """The allocator's counters of one of a process's devices."""

    index: int
    """Index among the devices that are visible to the process."""
    uuid: str | None = None
    """CUDA's uuid, without ``GPU-``; None: its torch is too old to report it (before 2.5)."""


class OptimizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Optimizers of one class that have stepped."""

    name: str
    """The class with its module: ``torch.optim.adamw.AdamW``."""
    options: Mapping[str, Any]
    """Keyword arguments that are plain values."""
    trained: Mapping[str, int]
    """Elements of what they step, by dtype."""
    sharded: str | None
    """``dtensor``: ``trained`` counts whole parameters; another word: those of this rank; None: they are whole."""


class SnapshotAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the last request for a memory snapshot."""

    request: int
    """The number that was asked with; 0: none has been asked for."""
    file: str | None
    """Path in the process's own file system; None: none was written."""
    bytes: int | None
    error: str | None


class ProbeSample(msgspec.Struct, frozen=True, kw_only=True):
    """The figures and facts that a process has published at one moment."""

    pid: int
    """In the process's own pid namespace."""
    time: float
    """Unix seconds."""
    devices: tuple[DeviceCounters, ...]
    """The devices that the process has allocated on, if it uses torch's own allocator."""
    steps: int
    """Training steps completed."""
    step_began: float | None
    """Unix seconds when the current step began, if the program reports it."""
    step_seconds: float | None
    """Duration of the last step."""
    trainer: Mapping[str, Any] | None = None
    """The trainer's arguments, once training has begun."""
    model: Mapping[str, Any] | None = None
    """Class, parameters by dtype and by whether they are trained, config, adapters."""
    optimizers: tuple[OptimizerFacts, ...] = ()
    """Optimizers that have stepped."""
    ended: float | None = None
    """Unix seconds when its interpreter exited; None: it has not, or was killed."""
    error: str | None = None
    """Class of the uncaught exception, such as ``OutOfMemoryError``."""
    snapshot: SnapshotAnswer | None = None
    """None: the probe is of an older vramtop, which knows no requests."""

    def stale_seconds(self, now: float) -> float | None:
        """Return the sample's age if it is older than a running process would leave it, else None."""
        age = now - self.time
        return age if age > STALE_SECONDS else None

    def belongs_to(self, pid: int) -> bool:
        """Return True if the process itself published the sample: a child may have inherited its parent's probe.

        Args:
            pid: as seen from here; inside its container, the process may have another one.
        """
        pids = namespace_pids(pid)
        return not pids or self.pid in pids  # a process that has just ended, or is hidden, may be the one

    def process_counters(self, device: DeviceCounters | None) -> ProcessCounters:
        """Return the process's figures with the allocator's counters of one device.

        Args:
            device: one of ``devices``; None: unknown, which leaves the allocator's counters unknown.
        """
        allocator = {} if device is None else {name: getattr(device, name) for name in _ALLOCATOR_FIELDS}
        return ProcessCounters(
            time=self.time,
            steps=self.steps if self.steps or self.step_began is not None else None,
            step_seconds=self.step_seconds,
            ended=self.ended,
            error=self.error,
            **allocator,
        )


@dataclass(slots=True)
class ProbeReader:
    """Reads the probe of one process. Its file is searched for once, and again as long as there is none."""

    pid: int
    _path: Path | None = None

    def read(self) -> ProbeSample | None:
        """Return the latest sample; None if there is no probe, it may not be read, or the process has ended."""
        if self._path is None:
            self._path = find_probe(self.pid)
        probe = None if self._path is None else open_probe(self._path)
        if probe is None:
            self._path = None
            return None
        try:
            sample = probe.read()
        finally:
            probe.close()
        return sample if sample is not None and sample.belongs_to(self.pid) else None


class OpenProbe:
    """A probe's memory file, held open: a process's last sample can be read after it has ended.

    Args:
        descriptor: of the file; ``close`` closes it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, *, facts: bool = True) -> ProbeSample | None:
        """Return the latest sample; None if there is none yet, or its format is unknown.

        Args:
            facts: also read what rarely changes (trainer, model), which takes longer.
        """
        for _ in range(_MAX_ATTEMPTS):
            try:
                data = os.pread(self._descriptor, _FIRST_READ_BYTES, 0)
                if len(data) < _HEADER.size:
                    return None
                magic, sequence, figures_bytes, facts_bytes = _HEADER.unpack_from(data)
                size = _HEADER.size + figures_bytes + (facts_bytes if facts else 0)
                if magic != _MAGIC or not 0 < size <= _MAX_BYTES:
                    return None
                if size > len(data):
                    data = os.pread(self._descriptor, size, 0)
                sequence_after = _HEADER.unpack_from(os.pread(self._descriptor, _HEADER.size, 0))[1]
            except OSError:
                return None
            if sequence == sequence_after and sequence % 2 == 0:
                facts_start = _HEADER.size + figures_bytes
                return parse_sample(data[_HEADER.size : facts_start], (facts and data[facts_start:size]) or b"{}")
        return None

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def open_probe(path: Path) -> OpenProbe | None:
    """Open what ``find_probe`` found; None if it no longer exists, or may not be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - under another root, a pipe may have that name
            return None
        return OpenProbe(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError:
        return None


def find_probe(pid: int) -> Path | None:
    """Find the probe's memory file among a process's open files, in 4 microseconds per file."""
    try:
        return next((Path(path) for path, target in open_files(pid) if target == _LINK), None)
    except OSError:
        return None


def parse_sample(figures: bytes, facts: bytes) -> ProbeSample | None:
    """Return what a probe has published as JSON; None: it is of another version, or a forgery."""
    import json  # not before there is a probe

    try:
        data = {**json.loads(facts), **json.loads(figures)}
        check_nesting(data)
        steps, error = data.get("steps") or {}, data.get("error")
        return ProbeSample(
            pid=_required_count(data["pid"]),
            time=_seconds(data["time"]) or 0.0,
            devices=tuple(_device_counters(device) for device in data.get("devices", ())),
            steps=_count(steps.get("count")) or 0,
            step_began=_seconds(steps.get("began")),
            step_seconds=_seconds(steps.get("seconds")),
            trainer=_mapping(data.get("trainer")),
            model=_model(data.get("model")),
            optimizers=_optimizers(data.get("optimizers")),
            ended=_seconds(data.get("ended")),
            error=error if isinstance(error, str) and error.isidentifier() else None,  # else escape sequences
            snapshot=_snapshot(data.get("snapshot")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # of another version, or a forgery
        return None


def _device_counters(device: Mapping[str, Any]) -> DeviceCounters:
    counters: dict[str, Any] = {name: _count(device.get(name)) for name in _ALLOCATOR_FIELDS}
    counters["out_of_memory_time"] = _seconds(device.get("out_of_memory_time"))
    uuid = str(device["uuid"]) if device.get("uuid") else None
    return DeviceCounters(index=_required_count(device["index"]), uuid=uuid, **counters)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def _required_count(value: Any) -> int:
    count = _count(value)
    if count is None:
        raise ValueError("not a count")
    return count


def _seconds(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 <= value <= MAX_UNIX_SECONDS else None


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, dict) else None


def _model(value: Any) -> Mapping[str, Any] | None:
    """Return the model's facts without invalid parameter counts."""
    return {**value, "parameters": _counts(value.get("parameters"))} if isinstance(value, dict) else None


def _optimizers(value: Any) -> tuple[OptimizerFacts, ...]:
    """Return the optimizers whose facts are of the expected kinds."""
    return tuple(
        OptimizerFacts(
            name=each["class"],
            options={
                name: option
                for name, option in (_mapping(each.get("options")) or {}).items()
                if str(name).isidentifier() and type(option) in (bool, int, float, type(None))
            },
            trained={name: count for name, count in _counts(each.get("trained")).items() if name.isidentifier()},
            sharded=each.get("sharded") if each.get("sharded") in (None, "dtensor") else "other",
        )
        for each in (value if isinstance(value, list) else ())
        if isinstance(each, dict) and isinstance(each.get("class"), str) and _DOTTED.fullmatch(each["class"])
    )


def _counts(value: Any) -> dict[str, int]:
    counts = _mapping(value) or {}
    return {name: count for name, count in counts.items() if _count(count) is not None}


def _snapshot(value: Any) -> SnapshotAnswer | None:
    request = _count(value.get("request")) if isinstance(value, dict) else None
    if request is None:
        return None
    file, error = (each if isinstance(each, str) else None for each in (value.get("file"), value.get("error")))
    return SnapshotAnswer(request=request, file=file, bytes=_count(value.get("bytes")), error=error)
