"""The GPU catalogue: memory of each GPU model as NVML reports it, and CUDA's own memory by generation."""

import difflib
import functools
import re
from pathlib import Path

import msgspec

from ..common.errors import InputError
from ..common.sizes import MIB

_VENDOR_WORDS = re.compile(r"\b(nvidia|geforce|tesla|quadro|colab|kaggle)\b")
_OTHER_VENDORS = {
    "AMD": re.compile(
        r"(amd|radeon|instinct)\w*|mi\d{2,3}[a-z]?|rx\d{4}(xtx?|gre)?|(pro)?w[67]\d00|gfx\d+\w*|strixhalo|vega\w*"
    ),
    "Intel": re.compile(r"(intel|arc|gaudi|hpu|xpu|pontevecchio)\w*|[ab][57]\d0|max1[15]50"),
    "Apple": re.compile(r"(apple|mps)\w*|m[1-9](pro|max|ultra)?"),
    "Google's TPU": re.compile(r"tpu\w*|v[2-7](e|p|litepod)\d*|trillium|ironwood"),
    "AWS": re.compile(r"(trn|inf)[1-9]\w*|(trainium|inferentia)\w*"),
    "Huawei": re.compile(r"(huawei|ascend|npu)\w*|910[bc]\w*"),
}
"""Names of accelerators that CUDA does not run on, as ``_key`` has them."""
_MAX_TOTAL_DIFFERENCE = 0.08
"""A live GPU whose total differs by more is not the one of that name: a slice (MIG, vGPU) or another edition."""
_CATALOGUE_FILE = Path(__file__).with_name("gpu_catalogue.toml")
_DEFAULT_MAJOR = 9
"""Compute capability of a GPU that is not known: Hopper's."""

BF16_CAPABILITY = (8, 0)
"""Compute capability from which GPUs compute in bf16."""


class Generation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What CUDA and its libraries take on GPUs of one major compute capability."""

    major: int
    context_mib: int
    """CUDA context before any kernel is loaded."""
    eager_context_mib: int
    """Context with all kernels, of versions that cannot load them lazily."""
    cublas_workspace_kib: int
    """cuBLAS workspace of one thread by default."""
    engine_workspace_mib: int
    """TransformerEngine's workspace."""

    @property
    def context_bytes(self) -> int:
        """CUDA context before any kernel is loaded."""
        return self.context_mib * MIB


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU model."""

    name: str
    """Name in job files and for ``--gpu-type``: ``h100-80gb``."""
    label: str
    """Name on screens."""
    aliases: tuple[str, ...] = ()
    architecture: str
    compute: str
    """Compute capability: ``8.9``."""
    total_mib: int
    """Total memory that NVML reports."""
    reserved_mib: int | None = None
    """Part of the total that the driver keeps on an idle GPU; None: never observed."""
    nvml_names: tuple[str, ...] = msgspec.field(name="nvml")
    """Names that NVML reports."""
    unified: bool = False
    """Memory is shared with the CPU, and NVML reports no total."""
    approximate: bool = False
    """The total is inferred, or drivers disagree about it."""

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Major and minor number."""
        major, minor = self.compute.split(".")
        return int(major), int(minor)

    @property
    def total_bytes(self) -> int:
        """Total memory that NVML reports."""
        return self.total_mib * MIB

    @property
    def reserved_bytes(self) -> int | None:
        """Part of the total that the driver keeps on an idle GPU; None: never observed."""
        return None if self.reserved_mib is None else self.reserved_mib * MIB


class _Catalogue(msgspec.Struct, forbid_unknown_fields=True):
    gpu: tuple[Gpu, ...]
    generation: tuple[Generation, ...]


def find_gpu(name: str) -> Gpu:
    """Return the GPU of a name by its usual name: ``h100-80gb``, ``a100-80``, ``H100``, ``RTX 4090``, ``4090``.

    Raises:
        InputError: there is none; the nearest names are given.
    """
    index = _index()
    if found := index.get(_key(name)) or index.get(f"{_key(name).removesuffix('g')}gb"):
        return found
    other = next((vendor for vendor, pattern in _OTHER_VENDORS.items() if pattern.fullmatch(_key(name))), None)
    if other is not None:
        raise InputError(f"{name}: {other} is not supported; vramtop predicts the memory of NVIDIA GPUs (CUDA)")
    near = difflib.get_close_matches(_key(name), list(index), n=6, cutoff=0.6)
    names = list(dict.fromkeys(index[key].name for key in near))[:3]
    known = f"similar: {', '.join(names)}" if names else "known are h100, a100-80gb, 4090 and others"
    raise InputError(f"no GPU {name!r} in the catalogue; {known}; or give --gpu-memory, like 80GiB")


def match_nvml_name(name: str, total_bytes: int | None = None) -> Gpu | None:
    """Return the catalogue's entry for a live GPU; None for an unknown GPU, or a slice of one.

    Args:
        name: as NVML reports it.
        total_bytes: NVML's total; None: it reports none.
    """
    wanted = name.casefold().strip()
    for gpu in catalogue():
        if wanted in (known.casefold() for known in gpu.nvml_names):
            if total_bytes is not None and abs(total_bytes - gpu.total_bytes) > _MAX_TOTAL_DIFFERENCE * gpu.total_bytes:
                return None
            return gpu
    return None


def generation_of(gpu: Gpu | None) -> Generation:
    """Return the generation of a GPU; None: Hopper."""
    major = gpu.compute_capability[0] if gpu else _DEFAULT_MAJOR
    known = {each.major: each for each in _file().generation}
    return known.get(major) or known[max((each for each in known if each < major), default=min(known))]


def catalogue() -> tuple[Gpu, ...]:
    """Return every GPU, in the order of the file: latest and largest first within each kind."""
    return _file().gpu


@functools.cache
def _file() -> _Catalogue:
    return msgspec.toml.decode(_CATALOGUE_FILE.read_bytes(), type=_Catalogue)


@functools.cache
def _index() -> dict[str, Gpu]:
    """Return every GPU by each of its names; a name that several have is that of the first in the file."""
    return {
        _key(word): gpu
        for gpu in reversed(catalogue())
        for word in (*gpu.nvml_names, gpu.label, *gpu.aliases, gpu.name)
    }


def _key(name: str) -> str:
    """Return letters and digits only, without the vendor's words: ``NVIDIA GeForce RTX 4090`` is ``rtx4090``."""
    return re.sub(r"[^a-z0-9]", "", _VENDOR_WORDS.sub("", name.casefold().replace("_", " ")))
