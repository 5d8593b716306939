"""Lines about what is known of a process: its command, its place, its parents and its environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from vramtop.estimator.common.sizes import GIB, KIB, MIB, format_gib
from vramtop.monitor.host.process_directory import GONE_NOTE

from ...draw.labels import MUTED, shorten
from ...draw.text_output import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from vramtop.monitor.host.inspect.process_details import CgroupFacts, ProcessDetails
    from vramtop.monitor.snapshot.snapshot import GpuProcess


def detail_lines(details: ProcessDetails) -> Iterator[Content]:
    """Yield all details under their headings, the one that is asked for most first."""
    yield from _part("Command", _command_lines([printable(argument) for argument in details.arguments]))
    yield from _part("Place", _place_lines(details))
    yield from _part(f"Parents ({len(details.parents)})", _parent_lines(details))
    yield from _part("Environment at its start", _environment_lines(details))


def listed_lines(process: GpuProcess) -> Iterator[Content]:
    """Yield what a snapshot knows of a process: its command, its parent, and anything unusual but that it is gone."""
    lines = [*_command_lines(printable(process.command or process.name or "").split())]
    lines += [_named("parent", str(process.parent))] if process.parent else []
    lines += [_named("note", process.note)] if process.note not in (None, GONE_NOTE) else []
    yield from _part("Command", lines)


def _part(title: str, lines: Iterable[Content]) -> Iterator[Content]:
    yield Content.styled(title, "bold underline")
    yield from lines
    yield Content()


_MAX_COMMAND_WIDTH = 100
"""A longer command line has a line for each option."""


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


_MAX_PARENT_WIDTH = 140
"""Limit of the command of a parent: only this process's own is shown whole."""


def _parent_lines(details: ProcessDetails) -> Iterable[Content]:
    """Yield the ancestors, the first of them at the top, each line further in than the one before."""
    chain = [(each.pid, each.user, each.command) for each in reversed(details.parents)]
    if not chain:
        yield Content.styled("none visible", MUTED)
        return
    chain.append((details.pid, details.user, "this process"))
    for depth, (pid, user, command) in enumerate(chain):
        branch = "  " * max(0, depth - 1) + ("└ " if depth else "")
        words = shorten(printable(command), _MAX_PARENT_WIDTH)
        yield Content.assemble(branch, (str(pid), "bold"), (f" {printable(user or 'n/a')} ", MUTED), words)


_TRAINING_VARIABLES = (
    *("CUDA_", "NVIDIA_", "NCCL_", "TORCH", "PYTORCH_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "ACCELERATE_"),
    *("DEEPSPEED_", "DS_", "FSDP_", "XFORMERS_", "VLLM_", "SGLANG_", "TRITON_", "TOKENIZERS_", "WANDB_", "MLFLOW_"),
    *("SLURM_", "OMPI_", "PMI_", "MASTER_", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    *("OMP_", "MKL_", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHON", "VIRTUAL_ENV", "CONDA_", "UCX_", "GLOO_"),
)
"""Beginnings of the names of variables that a training job depends on: they come first."""
_HIDDEN = "hidden from this user: only its owner and root can read it"


def _environment_lines(details: ProcessDetails) -> Iterable[Content]:
    if details.environment is None:
        yield Content.styled(_HIDDEN, MUTED)
        return
    items = sorted(details.environment.items(), key=lambda item: (not item[0].startswith(_TRAINING_VARIABLES), item))
    for name, value in items:
        style = "bold" if name.startswith(_TRAINING_VARIABLES) else ""
        yield Content.assemble((printable(name), style), ("=", MUTED), printable(value))


def _named(name: str, text: str | None) -> Content:
    shown = (_HIDDEN, MUTED) if text is None else printable(text)
    return Content.assemble((f"{name:<12}", MUTED), shown)


def size_text(size: int | None) -> str:
    """Return a size in GiB, or in MiB or KiB if it is small; n/a if it is unknown."""
    if size is None or size >= GIB // 10:
        return "n/a" if size is None else f"{format_gib(size)} GiB"
    return f"{size / MIB:.0f} MiB" if size >= MIB else f"{size / KIB:.0f} KiB" if size else "0"
