"""The parts of the process screen as text: command, place, parents, environment, open files, limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.content import Content

from ...draw import MUTED, printable, shorten
from .figures_text import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vramtop.monitor.host.inspect import CgroupFacts, Limit, OpenFile, ProcessDetails
    from vramtop.monitor.snapshot import GpuProcess

MAX_LINES = 1000
"""Limit of one part: a process may have a million files open."""
_MAX_COMMAND_WIDTH = 100
"""A longer command line has a line for each option."""
_MAX_PARENT_WIDTH = 140
"""Limit of the command of a parent: only this process's own is shown whole."""
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
        Part("Command", tuple(_command_lines([printable(argument) for argument in details.arguments]))),
        Part("Place", tuple(_place_lines(details))),
        Part(f"Parents ({len(details.parents)})", tuple(_parent_lines(details))),
        Part(*_environment(details)),
        Part(*_files(details)),
        Part("Limits", tuple(_limit_lines(details.limits))),
    )


def listed_part(process: GpuProcess) -> Part:
    """Return what a snapshot knows of a process: its command, its parent, and what is unusual about it."""
    lines = [*_command_lines(printable(process.command or process.name or "").split())]
    lines += [_named("parent", str(process.parent))] if process.parent else []
    lines += [_named("note", process.note)] if process.note else []
    return Part("Command", tuple(lines))


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


def _command_lines(arguments: Sequence[str]) -> Iterable[Content]:
    """Yield the command line; if it is long, each option with its values on a line of its own."""
    whole = " ".join(arguments)
    if len(whole) <= _MAX_COMMAND_WIDTH:
        yield Content(whole) if whole else Content.styled("hidden, or a kernel thread", MUTED)
        return
    line: list[str] = []
    for argument in arguments:
        if argument.startswith("-") and len(argument) > 1 and not argument[1].isdigit() and line:
            yield Content(" ".join(line))
            line = [" "]
        line.append(argument)
    yield Content(" ".join(line))


def _place_lines(details: ProcessDetails) -> Iterable[Content]:
    yield _named("directory", details.folder)
    yield _named("program", details.program)
    for container in details.containers:
        yield _named("runs in", container)
    yield _named("cgroup", details.cgroup.path if details.cgroup else None)
    if details.cgroup and (limits := _group_limits(details.cgroup)):
        yield _named("", limits)
    ram = details.ram
    if ram:
        parts = [f"{size_text(ram[name])} {word}" for name, word in _RAM_WORDS.items() if ram.get(name)]
        yield _named("RAM", f"{size_text(ram.get('resident'))} resident: {', '.join(parts)}")
        more = [f"most so far {size_text(ram['peak'])}"] if "peak" in ram else []
        more += [f"swapped out {size_text(ram['swap'])}"] if "swap" in ram else []
        yield _named("", ", ".join(more))
    if details.cpus is not None:
        yield _named("CPUs", f"may run on {details.cpus}")


_RAM_WORDS = {"own": "its own", "files": "of files", "shared": "shared memory", "locked": "locked"}


def _group_limits(cgroup: CgroupFacts) -> str:
    """Return what the processes of a control group use together, and its limits."""
    limits = []
    if cgroup.memory_bytes is not None:
        limits.append(f"RAM of all its processes {size_text(cgroup.memory_bytes)}")
    if cgroup.memory_limit_bytes is not None:
        limits.append(f"limit {size_text(cgroup.memory_limit_bytes)}")
    elif cgroup.memory_bytes is not None:
        limits.append("no limit")
    limits += [] if cgroup.cpu_limit is None else [f"at most {cgroup.cpu_limit:g} CPUs"]
    limits += [] if cgroup.tasks_limit is None else [f"at most {cgroup.tasks_limit:,} processes and threads"]
    return ", ".join(limits)


def _parent_lines(details: ProcessDetails) -> Iterable[Content]:
    """Yield the ancestors, the first of them at the top, each line further in than the one before."""
    chain = [(each.pid, each.user, each.command) for each in reversed(details.parents)]
    if not chain:
        yield Content.styled("none visible from here", MUTED)
        return
    chain.append((details.pid, details.user, "this process"))
    for depth, (pid, user, command) in enumerate(chain):
        branch = "  " * max(0, depth - 1) + ("└ " if depth else "")
        words = shorten(printable(command), _MAX_PARENT_WIDTH)
        yield Content.assemble(branch, (str(pid), "bold"), (f" {printable(user or 'n/a')} ", MUTED), words)


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
    counts = sorted(details.other_descriptors.items())
    others = ", ".join(f"{count:,} {kind.removesuffix('s') if count == 1 else kind}" for kind, count in counts)
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
