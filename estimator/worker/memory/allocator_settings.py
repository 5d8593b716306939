"""Settings of torch's CUDA caching allocator, read from the text of PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF.

Source: c10/core/AllocatorConfig and c10/cuda/CUDAAllocatorConfig of torch 2.4 to 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


MIB = 1 << 20
INTERVALS = 16
"""Intervals of sizes, one per power of two from 1 MiB; smaller and larger sizes belong to the first and the last."""
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
    non_split_rounding_bytes: int | None = None
    """Most bytes by which a block beyond `max_split_bytes` may exceed the request. None: `large_segment_bytes`."""
    large_segment_bytes: int = 20 * MIB
    """Segment for requests of 1 to 10 MiB, and the step by which expandable segments of the large pool grow."""
    roundup_divisions: tuple[int, ...] = ()
    """Steps between powers of two to which sizes are rounded up, per interval of sizes; empty: 512-byte steps."""
    memory_fraction: float = 1.0
    """Limit of the process as a share of the device (`torch.cuda.set_per_process_memory_fraction`)."""
    notes: tuple[str, ...] = ()
    """Sentences about options that are not followed."""
    followed: tuple[str, ...] = field(default=(), compare=False)
    """Options that are followed and change something, as written."""

    @classmethod
    def from_conf(cls, text: str | None) -> AllocatorSettings:
        """Return the settings of a text such as `expandable_segments:True,max_split_size_mb:128`.

        Never raises: an option that is unknown, not modelled or refused by torch keeps its default and gets a note.
        """
        fields: dict[str, Any] = {}
        notes: list[str] = []
        followed: list[str] = []
        options = _options(text or "")
        options.sort(
            key=lambda option: option[0] != "large_segment_size_mb"
        )  # the minimum of other options depends on it
        for name, value in options:
            if name in OPTIONS_WITHOUT_EFFECT:
                continue
            reader = _READERS.get(name)
            if reader is None:
                notes.append(_UNMODELLED.get(name, f"allocator option {name!r} is not known and was ignored"))
                continue
            before = replace(cls(), **fields)
            try:
                reader(value, fields)
            except ValueError as error:
                notes.append(f"allocator option {name}:{value} was ignored: {error}")
                continue
            if replace(cls(), **fields) != before:
                followed.append(f"{name}:{value}")
        return replace(cls(), **fields, notes=tuple(notes), followed=tuple(followed))

    def divisions(self, size: int) -> int:
        """Return the steps between powers of two for a request of `size` bytes; 0 or 1: no such rounding."""
        return self.roundup_divisions[_interval(size // MIB)] if self.roundup_divisions else 0


def _interval(mib: int) -> int:
    return min(max(mib.bit_length() - 1, 0), INTERVALS - 1)


def _options(text: str) -> list[tuple[str, str]]:
    """Return names and values; a comma inside brackets does not end an option."""
    parts = [""]
    depth = 0
    for char in "".join(text.split()):
        depth += (char == "[") - (char == "]")
        if char == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += char
    pairs = (part.partition(":") for part in parts if part)
    return [(name, value) for name, _, value in pairs]


def _boolean(value: str) -> bool:
    if value not in {"True", "False"}:
        raise ValueError("torch accepts only True or False")
    return value == "True"


def _mebibytes(value: str, minimum: int) -> int:
    if not value.isdecimal() or int(value) < minimum:
        raise ValueError(f"torch accepts a whole number of MB, at least {minimum}")
    return int(value) * MIB


def _fraction(value: str) -> float:
    try:
        fraction = float(value)
    except ValueError:
        fraction = -1.0
    if not 0 < fraction <= 1:
        raise ValueError("torch accepts a share between 0 and 1")
    return fraction


def _power_of_two(value: str, *, zero: bool = False) -> int:
    number = int(value) if value.isdecimal() else -1
    if number < 0 or number & (number - 1) or (number == 0 and not zero):
        raise ValueError("torch accepts powers of two")
    return number


def _divisions(value: str) -> tuple[int, ...]:
    """Read `4` (all sizes) or `[256:1,512:2,>:4]` (from 256 MiB, from 512 MiB, and beyond the last)."""
    if not value.startswith("["):
        return (_power_of_two(value),) * INTERVALS
    if not value.endswith("]"):
        raise ValueError("its closing bracket is missing")
    table = [0] * INTERVALS
    last = None
    for part in value[1:-1].split(","):
        start, _, steps = part.partition(":")
        division = _power_of_two(steps, zero=True)
        if start == ">":
            first = 0 if last is None else last + 1
            table[first:] = [division] * (INTERVALS - first)
            continue
        at = _interval(_power_of_two(start))
        if last is None:
            table[:at] = [division] * at  # the first one holds for all smaller sizes too
        table[at] = division
        last = at
    return tuple(table)


def _check_native(value: str) -> None:
    if value != "native":
        raise ValueError("vramtop models only torch's native allocator, and these figures are for it")


def _large_segment_mib(fields: dict[str, Any]) -> int:
    return int(fields.get("large_segment_bytes", AllocatorSettings.large_segment_bytes)) // MIB


_READERS: dict[str, Callable[[str, dict[str, Any]], None]] = {
    "expandable_segments": lambda v, f: f.update(expandable_segments=_boolean(v)),
    "max_split_size_mb": lambda v, f: f.update(max_split_bytes=_mebibytes(v, _large_segment_mib(f))),
    "max_non_split_rounding_mb": lambda v, f: f.update(non_split_rounding_bytes=_mebibytes(v, _large_segment_mib(f))),
    "large_segment_size_mb": lambda v, f: f.update(large_segment_bytes=_mebibytes(v, 11)),
    "roundup_power2_divisions": lambda v, f: f.update(roundup_divisions=_divisions(v)),
    "per_process_memory_fraction": lambda v, f: f.update(memory_fraction=_fraction(v)),
    "backend": lambda v, _: _check_native(v),
}
_UNMODELLED = {
    "garbage_collection_threshold": "garbage_collection_threshold is not modelled: torch heeds it only where the "
    "process's memory is limited, and reserves less then",
    "throw_on_cudamalloc_oom": "throw_on_cudamalloc_oom is not modelled: the flush before giving up is still assumed",
    "graph_capture_record_stream_reuse": "CUDA graphs are not modelled, nor graph_capture_record_stream_reuse",
}
