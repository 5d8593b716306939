"""Reads what the probe inside a training process publishes, through the process's open files."""

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAGIC = b"VRAMTOP1"
_HEADER = struct.Struct("<8sQQ")
_LIMIT_BYTES = 1 << 20
_LINK = "/memfd:vramtop-probe (deleted)"
_TRIES = 5
STALE_SECONDS = 5.0
"""A sample that is older tells of a process that is stopped, or hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCounters:
    """torch's own counters of one device, in bytes (``torch.cuda.memory_stats``)."""

    index: int
    """As the process numbers its visible devices."""
    allocated_bytes: int | None
    reserved_bytes: int | None
    active_bytes: int | None
    allocated_peak_bytes: int | None
    reserved_peak_bytes: int | None
    retries: int | None
    """How often the cache was flushed because an allocation failed."""
    out_of_memory: int | None
    """How often an allocation failed for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSample:
    """What a process says of itself."""

    time: float
    """Unix seconds."""
    torch: str | None
    devices: tuple[DeviceCounters, ...]
    """Those that the process has allocated on."""
    steps: int
    """Training steps that have ended."""
    step_began: float | None
    step_ended: float | None
    trainer: Mapping[str, Any] | None
    """The trainer's arguments, once training has begun."""
    model: Mapping[str, Any] | None
    """Class, parameters by dtype and whether they are trained, config, adapters."""

    def age_seconds(self, now: float) -> float | None:
        """How old the sample is, where it is older than a running process would leave it; None for a fresh one."""
        age = now - self.time
        return age if age > STALE_SECONDS else None


@dataclass(slots=True)
class ProbeReader:
    """The probe of one process. The descriptor is looked for once; a process without a probe is looked at again."""

    pid: int
    _path: Path | None = None

    def read(self) -> ProbeSample | None:
        """The newest sample; None where there is no probe, it may not be read, or the process has ended."""
        if self._path is None:
            self._path = find_probe(self.pid)
        if self._path is None:
            return None
        payload = _payload(self._path)
        if payload is None:
            self._path = None
            return None
        return _sample(payload)


def find_probe(pid: int) -> Path | None:
    """The probe's memory file among the open files of a process."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return None
    for name in names:
        try:
            if os.readlink(f"{folder}/{name}") == _LINK:  # noqa: PTH115 - cheaper, for processes with many files
                return Path(folder, name)
        except OSError:  # closed meanwhile
            continue
    return None


def _payload(path: Path) -> bytes | None:
    """A whole sample: its sequence is even, and the same before and after."""
    try:
        with path.open("rb", buffering=0) as file:
            for _ in range(_TRIES):
                data = os.pread(file.fileno(), _LIMIT_BYTES, 0)
                if len(data) < _HEADER.size:
                    return None
                magic, sequence, length = _HEADER.unpack_from(data)
                after = _HEADER.unpack_from(os.pread(file.fileno(), _HEADER.size, 0))[1]
                if magic != _MAGIC or not 0 < length <= _LIMIT_BYTES - _HEADER.size:
                    return None
                if sequence == after and sequence % 2 == 0:
                    return data[_HEADER.size : _HEADER.size + length]
    except OSError:
        return None
    return None


def _sample(payload: bytes) -> ProbeSample | None:
    try:
        data = json.loads(payload)
        steps = data.get("steps") or {}
        return ProbeSample(
            time=float(data["time"]),
            torch=data.get("torch") or None,
            devices=tuple(_counters(device) for device in data.get("devices", ())),
            steps=int(steps.get("count") or 0),
            step_began=steps.get("began"),
            step_ended=steps.get("ended"),
            trainer=data.get("trainer"),
            model=data.get("model"),
        )
    except (ValueError, KeyError, TypeError, AttributeError):  # written by another version, or not by us
        return None


def _counters(device: Mapping[str, Any]) -> DeviceCounters:
    names = ("allocated_bytes", "reserved_bytes", "active_bytes", "allocated_peak_bytes", "reserved_peak_bytes")
    counted = {name: _number(device.get(name)) for name in (*names, "retries", "out_of_memory")}
    return DeviceCounters(index=int(device["index"]), **counted)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
