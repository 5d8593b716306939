"""The GPU catalogue: how much memory a card of a given name has, as NVML reports it."""

import difflib
import functools
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..common.errors import InputError
from ..common.sizes import MIB

_VENDOR_WORDS = re.compile(r"\b(nvidia|geforce|tesla|quadro)\b")
_SAME_CARD = 0.08
"""A live card whose total differs by more is not the card of that name: a slice (MIG, vGPU) or another edition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of card."""

    name: str
    """What a job file and ``--gpu-type`` say: ``h100-80gb``."""
    label: str
    """For people."""
    aliases: tuple[str, ...]
    architecture: str
    compute_capability: tuple[int, int]
    total_bytes: int
    """NVML's total."""
    reserved_bytes: int | None
    """What the driver keeps of it on an idle card; None where that was not seen."""
    nvml_names: tuple[str, ...]
    """The names under which NVML reports it."""
    unified: bool
    """Memory is shared with the CPU, and NVML reports no total."""
    approximate: bool
    """The total is inferred, or drivers disagree about it."""


def find_gpu(name: str) -> Gpu:
    """The card of a name as people write it: ``h100-80gb``, ``H100``, ``RTX 4090``, ``4090``.

    Raises:
        InputError: there is none; the nearest names are given.
    """
    index = _index()
    found = index.get(_key(name))
    if found is not None:
        return found
    near = difflib.get_close_matches(_key(name), list(index), n=6, cutoff=0.5)
    names = list(dict.fromkeys(index[key].name for key in near))[:3] or [gpu.name for gpu in catalogue()[:8]]
    raise InputError(f"no GPU {name!r} in the catalogue; near are {', '.join(names)}; or give --gpu-memory, like 80GiB")


def match_nvml_name(name: str, total_bytes: int | None = None) -> Gpu | None:
    """The catalogue's entry for a live card; None for a card it does not know, or a slice of one.

    Args:
        name: as NVML reports it.
        total_bytes: NVML's total; None where it reports none.
    """
    wanted = name.casefold().strip()
    for gpu in catalogue():
        if wanted in (known.casefold() for known in gpu.nvml_names):
            if total_bytes is not None and abs(total_bytes - gpu.total_bytes) > _SAME_CARD * gpu.total_bytes:
                return None
            return gpu
    return None


@functools.cache
def catalogue() -> tuple[Gpu, ...]:
    """Every card, in the order of the file: newest and largest first within each kind."""
    text = Path(__file__).with_name("gpu_catalogue.toml").read_bytes()
    return tuple(_gpu(entry) for entry in msgspec.toml.decode(text, type=_File).gpu)


class _Entry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    label: str
    architecture: str
    compute: str
    total_mib: int
    reserved_mib: int | None = None
    aliases: tuple[str, ...] = ()
    nvml: tuple[str, ...]
    unified: bool = False
    approximate: bool = False


class _File(msgspec.Struct, forbid_unknown_fields=True):
    gpu: list[_Entry]


def _gpu(entry: _Entry) -> Gpu:
    major, minor = entry.compute.split(".")
    return Gpu(
        name=entry.name,
        label=entry.label,
        aliases=entry.aliases,
        architecture=entry.architecture,
        compute_capability=(int(major), int(minor)),
        total_bytes=entry.total_mib * MIB,
        reserved_bytes=None if entry.reserved_mib is None else entry.reserved_mib * MIB,
        nvml_names=entry.nvml,
        unified=entry.unified,
        approximate=entry.approximate,
    )


@functools.cache
def _index() -> dict[str, Gpu]:
    return {
        _key(word): gpu
        for gpu in reversed(catalogue())
        for word in (*gpu.nvml_names, gpu.label, *gpu.aliases, gpu.name)
    }


def _key(name: str) -> str:
    """Letters and digits alone, without the vendor's words: ``NVIDIA GeForce RTX 4090`` is ``rtx4090``."""
    return re.sub(r"[^a-z0-9]", "", _VENDOR_WORDS.sub("", name.casefold().replace("_", " ")))
