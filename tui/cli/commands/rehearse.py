"""``vramtop rehearse -- COMMAND``: run the user's program without a GPU, and print the memory that it would take."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from vramtop.estimator.common.errors import ExitCode, InputError
from vramtop.estimator.common.private_files import write_private
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.trace.rehearsal import Rehearsed, rehearse

from ...draw.text_output import printable
from ..json_text import json_text
from ..progress import Progress

_MAX_TENSORS = 8
_WIDTH = 16
_MAX_LINES = 40
"""Lines of the program's output that are shown if it fails, from the end."""


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the budget of the program; exit code 0.

    Raises:
        InputError: no command is given, or none of Python's.
        CannotTellError: the program ended before an optimizer had stepped.
    """
    if not launch:
        raise InputError("no command given; write: vramtop rehearse -- python train.py ...")
    gpu = find_gpu(options.gpu_type) if options.gpu_type else None
    with Progress(quiet=options.json) as progress:
        progress("rehearsing the program")
        found = rehearse(
            launch,
            gpu=gpu,
            steps=options.steps,
            timeout=options.timeout,
            python=options.python,
            on_output=_show_end,
        )
    if options.out:
        try:
            write_private(Path(options.out), f"{json_text(found.to_json())}\n".encode())
        except OSError as error:
            raise InputError(f"--out {options.out}: {error.strerror}") from None
    print(json_text(found.to_json()) if options.json else "\n".join(_lines(found)), flush=True)
    return ExitCode.DONE


def _show_end(output: str) -> None:
    sys.stderr.write("".join(f"{printable(line)}\n" for line in output.splitlines()[-_MAX_LINES:]))


def _lines(found: Rehearsed) -> Iterator[str]:
    answer, (low, high) = found.answer, found.range
    phases = answer.phases
    yield f"{printable(_label(found))}, GiB".ljust(34)[:34] + "".join(f"{name:>{_WIDTH}}" for name in phases)
    for component in next(iter(phases.values())).components:
        sizes = [phase.components.get(component, 0) for phase in phases.values()]
        if any(sizes):
            yield component.ljust(34) + "".join(f"{format_gib(size, digits=2):>{_WIDTH}}" for size in sizes)
    yield "sum".ljust(34) + "".join(f"{format_gib(phase.allocated, digits=2):>{_WIDTH}}" for phase in phases.values())
    yield ""
    yield (
        f"peak {format_gib(found.device_bytes, digits=2)} ({format_gib(low, digits=2)} to {format_gib(high, digits=2)})"
        f" GiB on the device, in the {found.phase} of step {answer.step}: {format_gib(found.allocated_bytes, digits=2)}"
        f" allocated, {format_gib(found.reserved_bytes, digits=2)} reserved"
    )
    if found.gpu is not None:
        yield f"{_verdict(found)} on {found.gpu.label} ({format_gib(_room(found), digits=1)} GiB)"
    yield ""
    yield f"{'largest at the peak':<34}{'GiB':>8}  {'component':<14}made at"
    for tensor in answer.peak_tensors[:_MAX_TENSORS]:
        shape = " x ".join(map(str, tensor.shape))
        what = f"{tensor.module or '-'} ({shape})"
        size = format_gib(tensor.bytes, digits=2)
        yield f"{printable(what)[:33]:<34}{size:>8}  {tensor.component:<14}{printable(_line(tensor.line))}"
    yield ""
    for sentence in found.warnings:
        yield f"warning: {printable(sentence)}"
    for sentence in found.assumptions:
        yield f"assumed: {printable(sentence)}"
    yield f"took {answer.seconds:.1f} s and {format_gib(answer.host_bytes, digits=1)} GiB of this host's memory"


def _label(found: Rehearsed) -> str:
    return next((Path(word).name for word in found.command if word.endswith(".py")), found.command[-1])


def _line(line: str) -> str:
    """Return a file and line, the file below the current folder, or with its own folder."""
    name, _, number = line.rpartition(":")
    file = Path(os.path.relpath(name)) if name else Path("?")
    shown = file if ".." not in file.parts and "site-packages" not in file.parts else Path(*Path(name).parts[-2:])
    return f"{shown}:{number}"


def _room(found: Rehearsed) -> int:
    gpu = found.gpu
    return 0 if gpu is None else gpu.total_bytes - (gpu.reserved_bytes or 0)


def _verdict(found: Rehearsed) -> str:
    low, high = found.range
    room = _room(found)
    return "fits" if high <= room else "does not fit" if low > room else "tight"
