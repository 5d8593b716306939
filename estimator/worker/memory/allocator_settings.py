"""Settings of torch's CUDA caching allocator, read from the text of PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF.

Source: c10/core/AllocatorConfig and c10/cuda/CUDAAllocatorConfig of torch 2.4 to 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

MIB = 1 << 20
_LEAST_SPLIT_MIB = 20
OPTIONS_WITHOUT_EFFECT = {  # on allocated or reserved device memory
    *("release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "pinned_use_cuda_host_register"),
    *("pinned_use_hip_host_register", "pinned_num_register_threads", "pinned_use_background_threads"),
    *("pinned_reserve_segment_size_mb", "pinned_free_catch_all"),
}


@dataclass(frozen=True)
class AllocatorSettings:
    """Options of the allocator. The defaults are torch's own."""

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    """Blocks of this size or more are never split, nor given to smaller requests. None: no limit."""
    notes: tuple[str, ...] = ()
    """Sentences about options that are not followed."""

    @classmethod
    def from_conf(cls, text: str | None) -> AllocatorSettings:
        """Return the settings of a text such as `expandable_segments:True,max_split_size_mb:128`.

        Never raises: an option that is unknown, not modelled or refused by torch keeps its default and gets a note.
        """
        settings = cls()
        notes: list[str] = []
        for name, value in _options(text or ""):
            if name in OPTIONS_WITHOUT_EFFECT:
                continue
            if name not in _READERS:
                notes.append(_UNMODELLED.get(name, f"allocator option {name!r} is not known and was ignored"))
                continue
            try:
                settings = replace(settings, **_READERS[name](value))
            except ValueError as error:
                notes.append(f"allocator option {name}:{value} was ignored: {error}")
        return replace(settings, notes=tuple(notes))


def _options(text: str) -> list[tuple[str, str]]:
    """Return names and values; a comma inside brackets does not end an option."""
    pairs = (part.partition(":") for part in re.split(r",(?![^\[]*\])", "".join(text.split())) if part)
    return [(name, value) for name, _, value in pairs]


def _boolean(value: str) -> bool:
    if value not in {"True", "False"}:
        raise ValueError("torch accepts only True or False")
    return value == "True"


def _split_bytes(value: str) -> int:
    if not value.isdecimal() or int(value) < _LEAST_SPLIT_MIB:
        raise ValueError(f"torch accepts a whole number of MB, at least {_LEAST_SPLIT_MIB}")
    return int(value) * MIB


def _check_native(value: str) -> dict[str, Any]:
    if value != "native":
        raise ValueError("vramtop models only torch's native allocator, and these figures are for it")
    return {}


_READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "expandable_segments": lambda value: {"expandable_segments": _boolean(value)},
    "max_split_size_mb": lambda value: {"max_split_bytes": _split_bytes(value)},
    "backend": _check_native,
}
_UNMODELLED = {
    "garbage_collection_threshold": "garbage_collection_threshold is not modelled: torch heeds it only where the "
    "process's memory is limited, and reserves less then",
    "throw_on_cudamalloc_oom": "throw_on_cudamalloc_oom is not modelled: the flush before giving up is still assumed",
    "graph_capture_record_stream_reuse": "CUDA graphs are not modelled, nor graph_capture_record_stream_reuse",
    "roundup_power2_divisions": "roundup_power2_divisions is not modelled: torch rounds sizes up and allocates more",
    "large_segment_size_mb": "large_segment_size_mb is not modelled: torch reserves more in larger segments",
    "max_non_split_rounding_mb": "max_non_split_rounding_mb is not modelled: the default of 20 MB is assumed",
    "per_process_memory_fraction": "per_process_memory_fraction is not modelled: torch fails beyond that share",
}
