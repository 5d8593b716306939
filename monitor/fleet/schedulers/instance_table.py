"""GPU instance types of clouds: a dated table, each row with the page that it was read from."""

import functools
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vramtop.estimator.common import GIB
from vramtop.estimator.job import Gpu, find_gpu

_FILE = Path(__file__).with_name("instance_types.toml")


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where instance types were read."""

    id: str
    cloud: str
    address: str
    date: str | None = None
    """Day that the page states for itself, ``2025-09-02``; None: it states none."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """One instance type."""

    name: str
    source: Source
    gpu: Gpu
    gpus: int
    ram_bytes: int | None
    """RAM; None: the source does not say."""
    skypilot: str | None
    """Name of the GPU in SkyPilot; None: not known."""
    dstack: str | None
    """Name of the GPU in dstack, which tells sizes apart by their memory; None: not known."""


class _GpuRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    skypilot: str
    dstack: str


class _InstanceRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    name: str
    gpu: str
    gpus: int
    ram_gib: int | None = None
    ram_gb: int | None = None


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    read: str
    gpu: tuple[_GpuRow, ...]
    source: tuple[Source, ...]
    instance: tuple[_InstanceRow, ...]


@functools.cache
def _file() -> _File:
    return msgspec.toml.decode(_FILE.read_bytes(), type=_File)


def table_date() -> str:
    """Return the day on which the sources were read."""
    return _file().read


@functools.cache
def instance_types() -> tuple[InstanceType, ...]:
    """Return every instance type, in the order of the table."""
    sources = {source.id: source for source in _file().source}
    names = {row.name: row for row in _file().gpu}
    return tuple(
        InstanceType(
            name=row.name,
            source=sources[row.source],
            gpu=find_gpu(row.gpu),
            gpus=row.gpus,
            ram_bytes=row.ram_gib * GIB if row.ram_gib else row.ram_gb * 10**9 if row.ram_gb else None,
            skypilot=names[row.gpu].skypilot if row.gpu in names else None,
            dstack=names[row.gpu].dstack if row.gpu in names else None,
        )
        for row in _file().instance
    )
