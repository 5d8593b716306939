"""Reads what the probe inside a training process publishes, through the process's open files."""

import os
import re
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..host.processes import namespace_pids
from ..snapshot.snapshot import MAX_UNIX_SECONDS

_MAGIC = b"VRAMTOP1"
_HEADER = struct.Struct("<8sQII")
_LIMIT_BYTES = 1 << 20
_USUAL_BYTES = 4096
"""Header and figures of a process with a dozen devices."""
_LINK = "/memfd:vramtop-probe (deleted)"
_TRIES = 5
_MOST_FILES = 20_000
"""Open files of a process that are looked at: it may have a million, at 4 microseconds each."""
STALE_SECONDS = 5.0
"""A sample that is older tells of a process that is stopped, or hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCounters:
    """torch's own counters of one device, in bytes (``torch.cuda.memory_stats``)."""

    index: int
    """As the process numbers its visible devices."""
    uuid: str | None = None
    """As CUDA has it, without ``GPU-``; None: its torch is too old to tell (before 2.5)."""
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    active_bytes: int | None = None
    allocated_peak_bytes: int | None = None
    """The highest that was seen, also where the program resets torch's own."""
    reserved_peak_bytes: int | None = None
    retries: int | None = None
    """How often the cache was flushed because an allocation failed."""
    out_of_memory: int | None = None
    """How often an allocation failed for good."""
    out_of_memory_time: float | None = None
    """Unix seconds of the first sample after the last of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSample:
    """What a process says of itself."""

    pid: int
    """As the process knows itself."""
    time: float
    """Unix seconds."""
    torch: str | None
    devices: tuple[DeviceCounters, ...]
    """Those that the process has allocated on, where it uses torch's own allocator."""
    steps: int
    """Training steps that have ended."""
    step_began: float | None
    """Of the step that is under way, where the program says so."""
    step_ended: float | None
    step_seconds: float | None
    """How long the last one took."""
    trainer: Mapping[str, Any] | None = None
    """The trainer's arguments, once training has begun."""
    model: Mapping[str, Any] | None = None
    """Class, parameters by dtype and whether they are trained, config, adapters."""
    ended: float | None = None
    """When its interpreter came to its end; None: it has not, or was killed."""
    error: str | None = None
    """The kind of exception that nobody caught, such as ``OutOfMemoryError``."""

    def stale_seconds(self, now: float) -> float | None:
        """How old the sample is, where it is older than a running process would leave it; None for a fresh one."""
        age = now - self.time
        return age if age > STALE_SECONDS else None

    def belongs_to(self, pid: int) -> bool:
        """Whether the process itself says so: a child may have inherited its parent's probe.

        Args:
            pid: as it is seen from here; in a container, the process may know itself by another one.
        """
        numbers = namespace_pids(pid)
        return not numbers or self.pid in numbers  # one that has just ended, or hides: nothing speaks against it


@dataclass(slots=True)
class ProbeReader:
    """The probe of one process. The descriptor is looked for once; a process without a probe is looked at again."""

    pid: int
    _path: Path | None = None

    def read(self) -> ProbeSample | None:
        """The newest sample; None where there is no probe, it may not be read, or the process has ended."""
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
    """A probe's memory file, held open: what a process said last can be read when it has ended.

    Args:
        descriptor: of the file; ``close`` gives it back.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, *, facts: bool = True) -> ProbeSample | None:
        """The newest sample; None before the first one, and where it is not understood.

        Args:
            facts: also what rarely changes (trainer, model), which takes longer.
        """
        for _ in range(_TRIES):
            try:
                data = os.pread(self._descriptor, _USUAL_BYTES, 0)
                if len(data) < _HEADER.size:
                    return None
                magic, sequence, figures, others = _HEADER.unpack_from(data)
                wanted = _HEADER.size + figures + (others if facts else 0)
                if magic != _MAGIC or not 0 < wanted <= _LIMIT_BYTES:
                    return None
                if wanted > len(data):
                    data = os.pread(self._descriptor, wanted, 0)
                after = _HEADER.unpack_from(os.pread(self._descriptor, _HEADER.size, 0))[1]
            except OSError:
                return None
            if sequence == after and sequence % 2 == 0:
                middle = _HEADER.size + figures
                return _sample(data[_HEADER.size : middle], (facts and data[middle:wanted]) or b"{}")
        return None

    def close(self) -> None:
        """Let go of the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def open_probe(path: Path) -> OpenProbe | None:
    """Open what ``find_probe`` found; None where it has gone, or may not be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - under another root, a pipe may have that name
            return None
        return OpenProbe(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError:
        return None


def find_probe(pid: int) -> Path | None:
    """The probe's memory file among the open files of a process. 4 microseconds for each of them."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return None
    for name in names[:_MOST_FILES]:
        try:
            if os.readlink(f"{folder}/{name}") == _LINK:  # noqa: PTH115 - cheaper, for processes with many files
                return Path(folder, name)
        except OSError:  # closed meanwhile
            continue
    return None


def _sample(figures: bytes, facts: bytes) -> ProbeSample | None:
    import json  # not before there is a probe

    try:
        data = {**json.loads(facts), **json.loads(figures)}
        steps = data.get("steps") or {}
        return ProbeSample(
            pid=_whole(data["pid"]),
            time=_seconds(data["time"]) or 0.0,
            torch=_version(data.get("torch")),
            devices=tuple(_counters(device) for device in data.get("devices", ())),
            steps=_number(steps.get("count")) or 0,
            step_began=_seconds(steps.get("began")),
            step_ended=_seconds(steps.get("ended")),
            step_seconds=_seconds(steps.get("seconds")),
            trainer=_mapping(data.get("trainer")),
            model=_model(data.get("model")),
            ended=_seconds(data.get("ended")),
            error=_name(data.get("error")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # of another version, or not by us
        return None


def _counters(device: Mapping[str, Any]) -> DeviceCounters:
    names = ("allocated_bytes", "reserved_bytes", "active_bytes", "allocated_peak_bytes", "reserved_peak_bytes")
    counted = {name: _number(device.get(name)) for name in (*names, "retries", "out_of_memory")}
    return DeviceCounters(
        index=_whole(device["index"]),
        uuid=str(device["uuid"]) if device.get("uuid") else None,
        out_of_memory_time=_seconds(device.get("out_of_memory_time")),
        **counted,
    )


def _number(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def _whole(value: Any) -> int:
    number = _number(value)
    if number is None:
        raise ValueError("not a number that counts")
    return number


def _seconds(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 <= value <= MAX_UNIX_SECONDS else None


def _version(value: Any) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(r"[\w.+-]{1,60}", value, re.ASCII) else None


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, dict) else None


def _model(value: Any) -> Mapping[str, Any] | None:
    """With parameter counts that are counts."""
    if not isinstance(value, dict):
        return None
    counts = _mapping(value.get("parameters")) or {}
    return {**value, "parameters": {name: count for name, count in counts.items() if _number(count) is not None}}


def _name(value: Any) -> str | None:
    """An exception's class, and nothing that could do harm to a terminal."""
    return value if isinstance(value, str) and value.isidentifier() else None
