"""Filters the displayed processes and GPUs by user and GPU; figures of a GPU stay those of all of it."""

import re
from collections.abc import Iterable, Sequence

import msgspec

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.records import replace

from ..snapshot.mig_devices import MigDevice
from ..snapshot.snapshot import GpuReading
from .board import Board, Hidden, ProcessRow

_RANGE = re.compile(r"(\d{1,4})-(\d{1,4})", re.ASCII)
_LABEL = re.compile(r"\d{1,4}(:\d{1,4}){0,2}", re.ASCII)
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{4,}", re.ASCII | re.IGNORECASE)


class DeviceChoice(msgspec.Struct, frozen=True):
    """GPUs and MIG devices as the user named them.

    Args:
        labels: ``3``, or ``0:3`` of a MIG device.
        uuids: beginnings of uuids, in lower case.
    """

    labels: frozenset[str] = frozenset()
    uuids: tuple[str, ...] = ()

    def includes(self, reading: GpuReading) -> bool:
        """Return True for a GPU or MIG device that was named, and for each MIG device of a GPU that was named."""
        labels = {reading.label, str(reading.index)}
        uuids = [reading.uuid]
        if isinstance(reading, MigDevice):
            labels.add(f"{reading.index}:{reading.device.gpu_instance}")
            uuids.append(reading.device.uuid)
        return bool(labels & self.labels) or any((uuid or "").lower().startswith(self.uuids) for uuid in uuids)

    def missing(self, readings: Iterable[GpuReading]) -> list[str]:
        """Return the names that are none of these devices."""
        present = list(readings)
        labels = (DeviceChoice(labels=frozenset({label})) for label in self.labels)
        uuids = (DeviceChoice(uuids=(uuid,)) for uuid in self.uuids)
        absent = [one for one in (*labels, *uuids) if not any(map(one.includes, present))]
        return sorted((*one.labels, *one.uuids)[0] for one in absent)


def parse_devices(text: str) -> DeviceChoice:
    """Parse a list of GPUs: indices, ranges, MIG devices and uuids (or their beginnings), ``0,2-3,0:3,GPU-5a3f``.

    Raises:
        InputError: a part is none of these.
    """
    labels: set[str] = set()
    uuids: list[str] = []
    for part in (each.strip() for each in text.split(",")):
        span = _RANGE.fullmatch(part)
        if span and int(span[1]) <= int(span[2]):
            labels |= {str(index) for index in range(int(span[1]), int(span[2]) + 1)}
        elif _LABEL.fullmatch(part):
            labels.add(":".join(str(int(number)) for number in part.split(":")))
        elif _UUID.fullmatch(part):
            uuids.append(part.lower())
        else:
            raise InputError(
                f"{part or text!r} is not a GPU: give indices, ranges, MIG devices or uuids: 0,2-3,0:3,GPU-5a3f"
            )
    return DeviceChoice(frozenset(labels), tuple(uuids))


class DisplayFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Decides for each board what is displayed.

    A run is displayed whole if any of its ranks is to be displayed.
    """

    text: str
    """The options as they were typed, for the line that says what is hidden."""
    users: frozenset[str] | None = None
    """None: all."""
    devices: DeviceChoice | None = None
    """None: all."""

    def apply(self, board: Board) -> Board:
        """Return the board with what is hidden on it."""
        rows = (*board.processes, *board.ended_processes)
        matching = {row.key for row in rows if self._matches(row)}
        runs = [run for run in board.runs if any(row.key in matching for row in run.rows)]
        displayed = matching.union(row.key for run in runs for row in run.rows)
        hidden = list({row.key: row for row in rows if row.key not in displayed}.values())
        readings = [row.reading for gpu in board.gpus for row in (gpu, *gpu.devices)]
        gpus = [] if self.devices is None else self._hidden_gpus(board)
        present = {row.process.key: row for row in hidden if row.ended_at is None}
        sizes = [row.process.used_bytes for row in hidden if row.ended_at is None]
        return replace(
            board,
            hidden=Hidden(
                by=self.text,
                rows=frozenset(row.key for row in hidden),
                gpus=frozenset(reading.key for reading in gpus),
                labels=tuple(reading.label for reading in gpus),
                processes=len(present),
                used_bytes=sum(size for size in sizes if size is not None),
                missing=tuple(self.devices.missing(readings)) if self.devices and readings else (),
            ),
        )

    def _hidden_gpus(self, board: Board) -> Sequence[GpuReading]:
        """Return the GPUs and MIG devices that were not named; the GPU of a MIG device stays."""
        assert self.devices is not None  # noqa: S101 - the caller has looked
        found: list[GpuReading] = []
        for gpu in board.gpus:
            parts = [device.reading for device in gpu.devices if not self.devices.includes(device.reading)]
            whole = not self.devices.includes(gpu.reading) and len(parts) == len(gpu.devices)
            found += [gpu.reading, *parts] if whole else parts
        return found

    def _matches(self, row: ProcessRow) -> bool:
        if self.users is not None and row.process.user not in self.users:
            return False
        return self.devices is None or self.devices.includes(row.gpu)
