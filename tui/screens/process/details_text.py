"""The parts of the process screen as text: command, place, parents, environment, open files, limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.content import Content

from vramtop.estimator.common import format_gib

from ...draw import MUTED, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vramtop.monitor.host.inspect import CgroupFacts, Limit, OpenFile, ProcessDetails

MAX_LINES = 1000
"""Of one part: a process may have a million files open."""
_TRAINING_VARIABLES = (
    *("CUDA_", "NVIDIA_", "NCCL_", "TORCH", "PYTORCH_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "ACCELERATE_"),
    *("DEEPSPEED_", "DS_", "FSDP_", "XFORMERS_", "VLLM_", "SGLANG_", "TRITON_", "TOKENIZERS_", "WANDB_", "MLFLOW_"),
    *("SLURM_", "OMPI_", "PMI_", "MASTER_", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    *("OMP_", "MKL_", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHON", "VIRTUAL_ENV", "CONDA_", "UCX_", "GLOO_"),
)
"""Beginnings of the names of variables that a training job depends on: they come first."""
_UNITS = {"bytes": "bytes", "seconds": "s", "us": "µs"}
"""Units of limits that their names do not say."""
_HIDDEN = "hidden from this user: only its owner and root may read it"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the screen."""

    title: str
    lines: tuple[Content, ...]


def detail_parts(details: ProcessDetails) -> tuple[Part, ...]:
    """Return all parts, what is asked for most first."""
    return (
        Part("Command", (Content(" ".join(map(printable, details.arguments)) or "none: a kernel thread"),)),
        Part("Place", tuple(_place_lines(details))),
        Part(f"Parents ({len(details.parents)})", tuple(_parent_lines(details))),
        Part(*_environment(details)),
        Part(*_files(details)),
        Part("Limits", tuple(_limit_lines(details.limits))),
    )


def matching_parts(parts: Iterable[Part], words: str) -> tuple[Part, ...]:
    """Return the parts with only those lines that contain every word, in any case; parts without one are left out."""
    wanted = words.lower().split()
    if not wanted:
        return tuple(parts)
    found = (
        Part(part.title, tuple(line for line in part.lines if all(word in line.plain.lower() for word in wanted)))
        for part in parts
    )
    return tuple(part for part in found if part.lines)


def _place_lines(details: ProcessDetails) -> Iterable[Content]:
    yield _named("directory", details.folder)
    yield _named("program", details.program)
    for container in details.containers:
        yield _named("runs in", container)
    yield _named("cgroup", _cgroup_text(details.cgroup) if details.cgroup else None)
    ram = details.ram
    if ram:
        parts = [f"{format_gib(ram[name])} {word}" for name, word in _RAM_WORDS.items() if ram.get(name)]
        yield _named("RAM, GiB", f"{format_gib(ram.get('resident'))} resident: {', '.join(parts)}")
        more = [f"most so far {format_gib(ram['peak'])}"] if "peak" in ram else []
        more += [f"swapped out {format_gib(ram.get('swap'))}"] if "swap" in ram else []
        yield _named("", ", ".join(more))
    if details.cpus is not None:
        yield _named("processors", f"may run on {details.cpus}")


_RAM_WORDS = {"own": "its own", "files": "of files", "shared": "shared memory", "locked": "locked"}


def _cgroup_text(cgroup: CgroupFacts) -> str:
    limits = []
    if cgroup.memory_bytes is not None:
        limit = cgroup.memory_limit_bytes
        of_limit = "no limit" if limit is None else f"limit {format_gib(limit)}"
        limits.append(f"RAM of the group {format_gib(cgroup.memory_bytes)} GiB, {of_limit}")
    elif cgroup.memory_limit_bytes is not None:
        limits.append(f"RAM limit {format_gib(cgroup.memory_limit_bytes)} GiB")
    limits += [] if cgroup.cpu_limit is None else [f"processor limit {cgroup.cpu_limit:g}"]
    limits += [] if cgroup.tasks_limit is None else [f"limit of {cgroup.tasks_limit:,} processes and threads"]
    return "; ".join([cgroup.path, *limits])


def _parent_lines(details: ProcessDetails) -> Iterable[Content]:
    """Yield the ancestors, the first of them at the top, each line further in than the one before."""
    chain = [(each.pid, each.user, each.command) for each in reversed(details.parents)]
    if not chain:
        yield Content.styled("none that is visible from here", MUTED)
        return
    chain.append((details.pid, details.user, "this process"))
    for depth, (pid, user, command) in enumerate(chain):
        branch = "  " * max(0, depth - 1) + ("└ " if depth else "")
        yield Content.assemble(branch, (str(pid), "bold"), (f" {printable(user or 'n/a')} ", MUTED), printable(command))


def _environment(details: ProcessDetails) -> tuple[str, tuple[Content, ...]]:
    if details.environment is None:
        return "Environment", (Content.styled(_HIDDEN, MUTED),)
    items = sorted(details.environment.items(), key=lambda item: (not item[0].startswith(_TRAINING_VARIABLES), item))
    lines = [
        Content.assemble(
            (printable(name), "bold" if name.startswith(_TRAINING_VARIABLES) else ""), ("=", MUTED), printable(value)
        )
        for name, value in items
    ]
    title = f"Environment at its start ({len(items)})"
    return title, _capped(lines, "variables") or (Content.styled("empty", MUTED),)


def _files(details: ProcessDetails) -> tuple[str, tuple[Content, ...]]:
    if details.files is None:
        return "Open files", (Content.styled(_HIDDEN, MUTED),)
    others = ", ".join(f"{count:,} {kind}" for kind, count in sorted(details.other_descriptors.items()))
    title = f"Open files ({len(details.files):,}{'; ' + others if others else ''})"
    return title, _capped([_file_line(file) for file in details.files], "files") or (Content.styled("none", MUTED),)


def _file_line(file: OpenFile) -> Content:
    notes = [f"× {file.descriptors}"] if file.descriptors > 1 else []
    notes += ["deleted, its space is freed when it is closed"] if file.deleted else []
    return Content.assemble(printable(file.path), (f"  {', '.join(notes)}" if notes else "", MUTED))


def _limit_lines(limits: Sequence[Limit] | None) -> Iterable[Content]:
    if limits is None:
        yield Content.styled(_HIDDEN, MUTED)
        return
    for limit in limits:
        soft, hard = _limit_value(limit.soft, limit.unit), _limit_value(limit.hard, limit.unit)
        at_most = "" if soft == hard else f" (can be raised to {hard})"
        yield _named(limit.name, f"{soft}{at_most}", width=18)


def _limit_value(value: int | None, unit: str) -> str:
    if value is None:
        return "unlimited"
    if unit == "bytes" and value >= 2**20:
        return f"{value / 2**20:,.0f} MiB"
    return f"{value:,} {_UNITS.get(unit, '')}".rstrip()


def _capped(lines: Sequence[Content], what: str) -> tuple[Content, ...]:
    if len(lines) <= MAX_LINES:
        return tuple(lines)
    more = Content.styled(f"and {len(lines) - MAX_LINES:,} more {what}", MUTED)
    return (*lines[:MAX_LINES], more)


def _named(name: str, text: str | None, *, width: int = 12) -> Content:
    shown = (_HIDDEN, MUTED) if text is None else printable(text)
    return Content.assemble((f"{name:<{width}}", MUTED), shown)
