"""Rehearsal: the user's own program, run without a GPU, and the memory that it would take on one.

The program runs in its own interpreter (``estimator/worker/rehearsal``): host tensors are real, GPU tensors have shapes
only. It ends after a few optimizer steps; what it writes is thrown away.
"""

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Any

import msgspec

from ..budget import Budget, ModelFacts, Peak, Phase, RankPeak, RehearsalFacts
from ..common.allocator_variables import allocator_settings
from ..common.errors import CannotTellError, InputError
from ..common.records import replace
from ..common.secrets import displayed
from ..common.sizes import format_gib, size_text
from ..common.untrusted_files import read_file, read_start
from ..formula.calibration import REHEARSED
from ..formula.doubts import Doubts, StepDoubt
from ..formula.process_memory import communicator_bytes
from ..formula.ranges import WorkspaceDoubt
from ..isolation.protocol import VARIABLE
from ..job.gpu_catalogue import Gpu, find_gpu
from ..job.job import Job
from ..job.resolved_job import resolve_job
from ..job.settings import Program
from ..readers.notebook import papermill_parameters
from ..readers.program.pinned_versions import pinned_versions, repository_folders
from ..readers.source.notebooks import UNKNOWN_VALUE, read_notebook
from . import kept_rehearsals
from .isolated_run import IsolatedRun, Report
from .kept_rehearsals import ConvolutionFacts, KeptRehearsal, RehearsalAnswer
from .launch_wrappers import without_wrappers
from .own_program import not_rehearsed, require_own
from .python_command import NOTEBOOK, python_command
from .stand_in_models import cache_with, is_folder, stand_in_for
from .traced_budget import Overhead, highest_of, overhead_of, peak_of, phases_of, timeline_of
from .worker_process import WORKER_PROGRAM

_UNEQUAL_SHARES = 0.1
"""Share of a step's memory by which unequal routing may raise the peak: all experts together hold a known number of
tokens, but the buffers of the one at work grow with its own. Chosen, not measured."""
NO_TORCH = "cannot import torch"
"""Part of what the program that rehearses says in a Python without torch."""
_STOOD_IN = (
    "{} is not on this machine{}: vramtop's own config stands in for it, and a tokenizer that makes one token of each "
    "word, or a processor with the usual sizes of its class"
)
_LAUNCHED = re.compile(r"KeyError: '(?:(?:LOCAL_)?(?:RANK|WORLD_SIZE)|MASTER_\w+)'")
_NO_NETWORK = re.compile(
    "Name or service not known|failure in name resolution|Network is unreachable|doesn't exist on the Hugging Face Hub"
)
_NO_MODULE = re.compile(r"No module named '(\w+)'")
_LINE = re.compile(r":\d+$")
_ASSUMED_ONE, _MORE_THAN_ONE = re.compile("; 1 is assumed$").search, 100
_ASSUMED_YES = re.compile("; yes is assumed$").search
_OTHER_VERSION = re.compile(r"(ImportError|AttributeError|TypeError|AssertionError): ")
"""Errors of a program that was written for another version of a library."""
_MAX_ERROR, _MAX_LEFT_OUT, _MAX_LINE = 300, 4, 60
_MAX_ANSWER_BYTES, _MAX_PROGRESS_BYTES = 2**27, 200
"""The program may write anything where its answer is looked for."""
_KEPT_BY = {
    ("landlock", True): "Landlock protected the real files",
    ("landlock", False): "Landlock protected the real files, but not their modes and times",
    ("python", True): "calls that would change real files were refused when they were seen, without Landlock",
    ("python", False): "only writes by its Python code were blocked; child processes and C code may change real files",
}
"""What keeps real files where the program has no view, by the level and whether the kernel tells of its calls."""


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """A rehearsed program."""

    answer: RehearsalAnswer
    budget: Budget
    workspace_bytes: int
    """cuBLAS's workspaces, which torch's allocator holds."""

    @property
    def allocated_bytes(self) -> int:
        """Allocated bytes of the peak."""
        return self.budget.peak.allocated_bytes

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the figures depend on and is not known."""
        return self.budget.warnings


def _steps(answer: RehearsalAnswer) -> str:
    counts = (f"{each.steps} step{'' if each.steps == 1 else 's'} of {each.optimizer}" for each in answer.steps)
    return ", ".join(counts) or "no optimizer step"


def rehearse_job(
    job: Job,
    *,
    gpu: Gpu | None = None,
    memory_bytes: int | None = None,
    environ: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
    may_run: bool = False,
    kept: bool = True,
    background: bool = False,
) -> Rehearsed:
    """Return the rehearsal of a job's program: one that is kept, or with ``may_run`` a new one, without a GPU.

    Args:
        job: with a program.
        gpu: what the program finds; None: the job's target, else a Hopper GPU of 80 GiB.
        memory_bytes: total memory of a GPU that is not in the catalogue.
        environ: the program's environment; None: this process's.
        progress: called with a few words about what is being done.
        may_run: the user has asked for this program to be run; False: nothing is started.
        kept: take a rehearsal that is kept, if there is one.
        background: run it on one thread and at the lowest priority.

    Raises:
        InputError: it is no command of Python's, others decide what it runs, or it cannot be started.
        CannotTellError: it is not kept and may not run, or it ended before an optimizer had stepped; with the end of
            its output.
    """
    variables = dict(os.environ if environ is None else environ)
    program = job.program or Program()
    if gpu is None and job.target.gpu:
        gpu = find_gpu(job.target.gpu)
    if program.kept is not None:
        found = kept_rehearsals.find(program.kept)
        if found is None or found.what_changed(None) is not None:
            raise CannotTellError(f"{job.label} has changed since it was rehearsed")
        return _rehearsed(job, found, gpu, variables)
    interpreter, words, given = python_command(program.words, variables, program.python, folder=program.folder)
    ranks = max(program.gpus, without_wrappers(program.words, variables, program.folder)[2])
    _, conf = allocator_settings(variables) or (None, None)
    folder = str(Path(program.folder or "").resolve())
    overhead = overhead_of(resolve_job(job), gpu, workspace=variables.get("CUBLAS_WORKSPACE_CONFIG"))
    card = {**_card(gpu, memory_bytes), "context": overhead.context, "workspace": overhead.workspace}
    data = synthetic_sizes(program.data)
    settings = {"steps": program.steps, "gpus": ranks, "conf": conf, "card": card, "data": data}
    name = kept_rehearsals.key_of(interpreter, words, folder, {**settings, "offline": program.offline})
    environ_of_run = {**variables, **given, **kept_rehearsals.SET_BY_REHEARSAL}
    found = kept_rehearsals.find(name) if kept else None
    changed = found.what_changed(environ_of_run) if found is not None else None
    if found is not None and changed is None:
        return _rehearsed(job, found, gpu, variables)
    if not may_run:
        raise CannotTellError(not_rehearsed(program, gpu, memory_bytes, changed))
    require_own(program, interpreter, words, folder)
    start = _Start(
        program=program, command=[str(interpreter), str(WORKER_PROGRAM), "rehearse"], words=words, folder=folder,
        environ=environ_of_run, plan=settings, label=job.label, progress=progress, background=background,
    )  # fmt: skip
    answer, report, stand_ins = _run(start)
    found = kept_rehearsals.of_answer(interpreter, words, folder, environ_of_run, answer=answer, report=report)
    if stand_ins:
        found = msgspec.structs.replace(found, refused=f"it was made without {', '.join(stand_ins)}")
    if found.refused is None:
        kept_rehearsals.keep(name, found)
    return _rehearsed(job, found, gpu, variables, notes=tuple(_notes(changed, found, report)))


class _Start(msgspec.Struct, frozen=True, kw_only=True):
    """A rehearsal that is not kept, as it is started."""

    program: Program
    command: list[str]
    """Starts what rehearses."""
    words: list[str]
    """The arguments that ``python`` would be started with."""
    folder: str
    environ: dict[str, str]
    plan: dict[str, Any]
    label: str
    progress: Any
    """None, or called with a few words about what is being done."""
    background: bool

    def run(self, cells: Any, stand_ins: Mapping[str, str]) -> tuple[RehearsalAnswer | None, IsolatedRun]:
        """Run it once, with stand-ins for models: their names, and their ids on the hub."""
        with IsolatedRun(self.folder, offline=self.program.offline, background=self.background) as run:
            files = {"answer": f"{run.shared}/answer.json", "progress": f"{run.shared}/progress"}
            limits = {"seconds": self.program.timeout, **({"threads": 1} if self.background else {})}
            found = {"cells": cells, "stand_ins": stand_ins}
            plan = {**self.plan, **files, **limits, **found, "scratch": str(run.shared), "kept_as": VARIABLE}
            file = run.shared / "plan.json"
            file.write_bytes(msgspec.json.encode(plan))
            cache = cache_with({*stand_ins.values()}, run.shared, self.environ) if stand_ins else {}
            run.start([*self.command, str(file), *self.words], {**self.environ, **cache})
            if self.progress is not None:
                self.progress(f"rehearsing {self.label}: starting")
            seen = Path(files["progress"])
            run.wait(self.program.timeout, lambda: _tell(self.progress, self.label, run.resident_bytes, seen))
            return _read(Path(files["answer"])), run


def _run(start: _Start) -> tuple[RehearsalAnswer, Report, Sequence[str]]:
    """Run a program, again for each model that is missing and has a stand-in; return these, too.

    It is also run again if it fails where 1 was assumed for a number that is only known in a real run, and where one
    of many values was assumed to be true.

    Raises:
        CannotTellError: it ended before an optimizer had stepped; with the end of its output.
    """
    first, *rest = start.words
    notebook = Path(start.folder, first) if first.endswith(NOTEBOOK) else None
    cells, left_out = _cells(notebook, rest) if notebook is not None else (None, ())
    stand_ins: dict[str, str] = {}
    answer, run = start.run(cells, stand_ins)
    while answer is not None:
        missing = answer.missing_repository
        if missing is not None and missing not in stand_ins and (known := stand_in_for(missing)) is not None:
            stand_ins[missing] = known
            if not answer.hub_answers or missing != known:  # libraries would ask it for more, and some then fail
                start.environ["HF_HUB_OFFLINE"] = "1"
        elif answer.ended == "error" and "number" not in start.plan and any(map(_ASSUMED_ONE, answer.doubts)):
            start.plan["number"] = _MORE_THAN_ONE
        elif answer.ended == "error" and "any" not in start.plan and any(map(_ASSUMED_YES, answer.doubts)):
            start.plan["any"] = False
        else:
            break
        answer, run = start.run(cells, stand_ins)
    if answer is None or not answer.peak_reserved or answer.ended in ("error", "exit"):
        why = (_failure(answer, run, start), *left_out, *_kept_by(run.report))
        error = CannotTellError("; ".join(why))
        error.output = "" if NO_TORCH in run.last_line else run.output
        raise error
    if run.report is None:
        raise CannotTellError(run.stopped or f"the program's supervisor ended: {run.last_line}")
    asked = {name: ", and the hub did not give it" if name == known else "" for name, known in stand_ins.items()}
    doubts = [*itertools.starmap(_STOOD_IN.format, asked.items()), *left_out, *answer.doubts]
    read = (*answer.files, *([str(notebook)] if notebook is not None else ()))
    return msgspec.structs.replace(answer, doubts=doubts, files=read), run.report, [*stand_ins]


def _cells(notebook: Path, words: Sequence[str]) -> tuple[list[tuple[int, str]], tuple[str, ...]]:
    """Return the number and the Python code of a notebook's cells, and what is left out of them.

    Args:
        notebook: its file.
        words: its arguments, papermill's parameters among them.

    Raises:
        InputError: it cannot be read, or is no notebook in Python.
    """
    parameters, problem = papermill_parameters(words, notebook.parent.joinpath)
    code = read_notebook(notebook, parameters=parameters)
    lines = [
        f"{line if len(line) <= _MAX_LINE else f'{line[:_MAX_LINE]}...'} (cell {cell})" for cell, line in code.left_out
    ]
    more = [f"and {len(lines) - _MAX_LEFT_OUT} more"] if len(lines) > _MAX_LEFT_OUT else []
    listed = displayed(", ".join((*lines[:_MAX_LEFT_OUT], *more)))
    left_out = [f"{notebook.name}: magics and shell lines were not run: {listed}"] if lines else []
    # a shell line that is not run prints nothing
    cells = [(number, text.replace(UNKNOWN_VALUE, "[]")) for number, text in code.cells]
    doubts = (*code.doubts, *([problem] if problem else []))
    return cells, (*left_out, *(each.rstrip(".") for each in doubts))


def _notes(changed: str | None, found: KeptRehearsal, report: Report) -> Iterator[str]:
    """Yield why the program was run again, why its rehearsal is not kept, and what kept it from real files."""
    if changed:
        yield f"Rehearsed again, because {changed}."
    if found.refused:
        yield f"This rehearsal is not kept: {found.refused}."
    yield from (f"{each[0].upper()}{each[1:]}." for each in _kept_by(report))


def _kept_by(report: Report | None) -> Iterator[str]:
    """Yield what kept the program from real files, where it had none of its own."""
    if report is not None and report.level != "overlay":
        why = report.why.get("overlay", "not requested")
        kept = _KEPT_BY[report.level, report.watched]
        yield (
            f"this kernel gave the program no private file system ({why}): {kept}; only its Python code can read the "
            "files it wrote"
        )


def _rehearsed(
    job: Job, found: KeptRehearsal, gpu: Gpu | None, environ: Mapping[str, str], notes: tuple[str, ...] = ()
) -> Rehearsed:
    answer = found.answer
    if answer.world_size > 1:
        job = msgspec.structs.replace(job, parallel=answer.parallel)
    if not answer.trains:
        job = msgspec.structs.replace(job, training=msgspec.structs.replace(job.training, mode="inference"))
    overhead = overhead_of(
        resolve_job(job),
        gpu,
        workspace=environ.get("CUBLAS_WORKSPACE_CONFIG"),
        convolves=answer.convolutions is not None,
    )
    workspace = overhead.workspace if answer.multiplies else 0
    overhead = replace(overhead, workspace=workspace, nccl=communicator_bytes(answer.groups))
    budget = _budget(job, found, overhead, gpu)
    budget = replace(budget, assumptions=(*budget.assumptions, *notes))
    return Rehearsed(answer=answer, budget=budget, workspace_bytes=overhead.workspace)


def _budget(job: Job, found: KeptRehearsal, overhead: Overhead, gpu: Gpu | None) -> Budget:
    """Return the budget of what was rehearsed; the shares of its ranges are those of traced steps."""
    answer = found.answer
    phases = phases_of(answer.phases, overhead)
    reserved = answer.peak_reserved + overhead.workspace
    if answer.batches_left and answer.evaluation_growth:
        phases, more = _with_all_batches(phases, answer)
        reserved += more
    highest = highest_of(phases, overhead)
    parts = highest.components
    states = parts.weights + parts.other_models + parts.gradients + parts.optimizer
    step = highest.allocated_bytes - states
    less = step if "sizes" in answer.doubt_kinds else min(step, answer.assumed_bytes)
    more = int(step * _UNEQUAL_SHARES) if "shares" in answer.doubt_kinds else 0
    doubt: StepDoubt = "compiled" if "compiled" in answer.doubt_kinds else "framework"
    doubts = Doubts(step="recurrent" if "recurrent" in answer.doubt_kinds else doubt, allocator="plain")
    peak = peak_of(
        phases,
        highest,
        reserved,
        doubts,
        (less, more),
        calibration=REHEARSED,
        workspaces=_workspace_doubt(answer.convolutions, doubts.step),
    )
    timeline = None
    if answer.timeline:
        timeline = timeline_of(answer, [size + overhead.workspace for size in answer.reserved], overhead)
    return Budget(
        job=job,
        model=ModelFacts(
            parameters=max(answer.parameters, answer.trained), trainable_parameters=answer.trained, count="exact"
        ),
        method="rehearsed",
        phases=phases,
        peak=peak,
        steady_device_bytes=peak.device_bytes,
        stages=_of_each_gpu(answer, peak),
        assumptions=tuple(_assumptions(found, gpu)),
        warnings=(*_warnings(answer), *_growth(answer, peak, _card(gpu, None)["total_memory"])),
        largest=tuple(
            replace(each, line=_absolute(each.line, found.folder), own_line=_absolute(each.own_line, found.folder))
            for each in answer.peak_tensors
        ),
        timeline=timeline,
        rehearsal=RehearsalFacts(
            python=found.python,
            versions=answer.versions,
            optimizer_steps={each.optimizer: each.steps for each in answer.steps},
            step=answer.step,
            seconds=answer.seconds,
            host_bytes=answer.host_bytes,
            time=found.time,
            growth_bytes=sum(size for _, size in answer.growth),
        ),
    )


def _of_each_gpu(answer: RehearsalAnswer, peak: Peak) -> tuple[RankPeak, ...]:
    """Return the peak on each GPU that one process uses, in their order; empty: it uses one."""
    if len(answer.gpus) < 2 or answer.world_size > 1:
        return ()
    shares = [(peak.device_bytes - answer.gpus[0][1] + size) / peak.device_bytes for _, size in sorted(answer.gpus)]
    return tuple(
        RankPeak(
            device_bytes=round(share * peak.device_bytes),
            low_bytes=round(share * peak.low_bytes),
            high_bytes=round(share * peak.high_bytes),
        )
        for share in shares
    )


def _with_all_batches(phases: tuple[Phase, ...], answer: RehearsalAnswer) -> tuple[tuple[Phase, ...], int]:
    """Return the phases with what all batches of evaluation keep, and by how much the peak is higher."""
    size = (answer.batches_left or 0) * answer.evaluation_rise
    before = max(phase.allocated_bytes for phase in phases)
    phases = tuple(
        replace(phase, components=replace(phase.components, activations=phase.components.activations + size))
        if phase.name == "evaluation"
        else phase
        for phase in phases
    )
    return phases, max(phase.allocated_bytes for phase in phases) - before


def _workspace_doubt(found: ConvolutionFacts | None, step: StepDoubt) -> WorkspaceDoubt:
    """Return how far cuDNN's workspaces, and what was measured with them, may lie from what is expected."""
    if found is None:
        return WorkspaceDoubt()
    expected, low, high = found.expected, found.low, found.high
    reserved = expected.reserved, low.reserved, high.reserved  # the allocator may hold less with larger workspaces
    return WorkspaceDoubt(
        allocated=(expected.allocated - low.allocated, high.allocated - expected.allocated),
        reserved=(expected.reserved - min(reserved), max(reserved) - expected.reserved),
        errors=found.errors if step == "framework" else None,
    )


def _absolute(line: str, folder: str) -> str:
    """Return a file and line with the file's full path."""
    file, _, number = line.rpartition(":")
    return line if not line or line.startswith("<") else f"{Path(folder, file)}:{number}"


def _warnings(answer: RehearsalAnswer) -> Iterator[str]:
    """Yield what the figure depends on and is not known."""
    alike: dict[str, list[str]] = {}
    for each in answer.doubts:
        line, _, rest = each.partition(" ")
        alike.setdefault(rest if _LINE.search(line) else each, []).append(each)
    for first, *more in alike.values():
        elsewhere = f" (as in {len(more)} other line{'s' if len(more) > 1 else ''})" if more else ""
        yield f"{first}{elsewhere}."
    convolutions = answer.convolutions
    if convolutions is not None and convolutions.low.reserved < convolutions.high.reserved:
        for kind in convolutions.unmeasured:
            yield f"cuDNN workspaces for convolutions {kind} have not been measured: the range is wide."
    if len(answer.gpus) > 1:
        (fullest, _), *others = answer.gpus
        least, most = (format_gib(which(size for _, size in others)) for which in (min, max))
        yield (
            f"The program uses {len(answer.gpus)} GPUs in one process. This is GPU {fullest}, which holds the most; "
            f"torch reserves {f'{least} to ' if least != most else ''}{most} GiB on the other"
            f"{'s' if len(others) > 1 else ''}."
        )
    if answer.ended == "time":
        yield f"The time limit was reached after {_steps(answer)}, at {answer.line}: later steps may need more memory."
    if not answer.trains:
        yield "No optimizer stepped: the figure is of all that the program did from its first call of a model on."
    what = f"{f'at {answer.line}: ' if answer.line else ''}{_error(answer) or 'it exited'}"
    if answer.ended == "failed":
        yield f"The program failed after {_steps(answer)}, {what}."
    if answer.ended == "stopped":
        yield (
            f"After {_steps(answer)} the rehearsal ended the epoch early, and the program stopped there, {what}. In a "
            "whole epoch that need not happen; what comes after it is not in the figure."
        )
    if answer.ended == "end" and answer.steps and all(each.steps < 2 for each in answer.steps):
        yield "The program ended after its first optimizer step: later steps may need more memory."


def _growth(answer: RehearsalAnswer, peak: Peak, gpu_bytes: int) -> Iterator[str]:
    """Yield what stays allocated after each step or epoch, and after each batch of evaluation."""
    if answer.growth:
        size = sum(size for _, size in answer.growth)
        steps = answer.steps_seen + max(0, gpu_bytes - peak.device_bytes) // size
        yield (
            f"{size_text(size)} more stay allocated after each step ({answer.growth[0][0]}): {format_gib(gpu_bytes)} "
            f"GiB are full after about {steps:,} steps."
        )
    elif answer.epoch_growth:
        size, line = sum(size for _, size in answer.epoch_growth), answer.epoch_growth[0][0]
        epochs = max(0, gpu_bytes - peak.device_bytes) // size
        yield (
            f"{size_text(size)} more stay allocated after each evaluation or checkpoint ({line}): "
            f"{format_gib(gpu_bytes)} GiB are full after about {epochs:,} more of them."
        )
    if answer.evaluation_growth and answer.batches_left != 0:
        size, line = sum(size for _, size in answer.evaluation_growth), answer.evaluation_growth[0][0]
        left = "for all batches" if answer.batches_left else "for a few batches only, as their number is not known"
        yield f"{size_text(size)} more stay allocated after each batch of evaluation ({line}), counted {left}."


def _assumptions(found: KeptRehearsal, gpu: Gpu | None) -> Iterator[str]:
    answer = found.answer
    versions = ", ".join(f"{name} {number}" for name, number in answer.versions.items())
    host = f"{answer.seconds:.1f} s and {format_gib(answer.host_bytes)} GiB of host memory"
    yield f"Rehearsed on {found.date} with {versions}: {_steps(answer)} in {host}."
    card = gpu.label if gpu else "an 80 GiB Hopper GPU"
    yield f"The program saw {card}; CUDA context and cuBLAS workspaces are those of that generation."
    if answer.convolutions is not None:
        yield "cuDNN workspaces follow a rule that was fitted to timm's models on an A100 (arXiv 2602.17817)."
        if answer.convolutions.benchmark:
            yield "cudnn.benchmark tries every plan in free memory: the first steps may briefly fill the GPU."


def _tell(progress: Callable[[str], None] | None, label: str, host_bytes: int, file: Path) -> None:
    """Say where the program is: its step and phase, allocations, and host memory."""
    if progress is None:
        return
    with contextlib.suppress(OSError):
        where = read_start(file, _MAX_PROGRESS_BYTES).decode("ascii", "replace").strip(" \0")
        host = f"{format_gib(host_bytes)} GiB of host memory"
        progress(f"rehearsing {label}: {where or 'starting'}, {host}")


def _card(gpu: Gpu | None, memory_bytes: int | None) -> dict[str, Any]:
    if gpu is None:
        total = memory_bytes or 85_520_809_984
        return {"name": "NVIDIA H100 80GB HBM3", "total_memory": total, "capability": [9, 0]}
    return {
        "name": gpu.nvml_names[0] if gpu.nvml_names else gpu.name,
        "total_memory": memory_bytes or gpu.total_bytes,
        "capability": list(gpu.compute_capability),
    }


def _read(file: Path) -> RehearsalAnswer | None:
    try:
        return msgspec.json.decode(read_file(file, _MAX_ANSWER_BYTES), type=RehearsalAnswer)
    except (OSError, msgspec.MsgspecError):
        return None


def _error(answer: RehearsalAnswer) -> str:
    """Return the program's error as one line: its first line, and the last line of a traceback that it quotes."""
    lines = [line.strip() for line in (answer.error or "").splitlines() if line.strip()]
    told = [*lines[:1], *(lines[-1:] if any("Traceback (" in line for line in lines) else ())]
    return " ".join(line if len(line) <= _MAX_ERROR else f"{line[:_MAX_ERROR]}..." for line in told)


def _failure(answer: RehearsalAnswer | None, run: IsolatedRun, start: _Start) -> str:
    """Return why there is no budget."""
    if run.stopped is not None:
        return run.stopped
    if answer is None:
        if NO_TORCH in run.last_line:
            return run.last_line
        return f"the program ended without a result ({_ending(run)}){_last_words(run)}"
    if answer.missing_data is not None:
        return (
            f"the program did not find its data ({answer.missing_data}): {_error(answer)}; download it first, or let "
            "synthetic items stand in for it: --data synthetic"
        )
    if (missing := answer.missing_repository) is not None:
        line = answer.line.partition(", in ")[0]
        if is_folder(missing):
            return f"the program needs the folder {missing}, which is not on this machine (at {line}); copy it first"
        return (
            f"the program needs {missing}, which is not on this machine, and the hub did not give it "
            f"(at {line}); download it first: hf download {missing}"
        )
    if answer.ended == "error" and "OutOfMemoryError" in (answer.error or ""):
        return (
            f"at {answer.line} the program runs out of the GPU's memory and catches the error ({_error(answer)}); a "
            "rehearsal does not follow what it tries next: give it one size that fits"
        )
    if answer.ended == "error":
        failed = f"the program failed during the rehearsal, at {answer.line}: {_error(answer)}"
        return f"{failed}{_reason(answer, start)}"
    if answer.ended == "exit":
        when = f"after {_steps(answer)}" if answer.steps else "before an optimizer stepped"
        return f"the program ended with {_ending(run)} {when}"
    if answer.phases:
        return "the program trained without putting anything on the GPU that it found, so there is nothing to predict"
    if answer.ended == "time":
        return (
            f"no optimizer stepped within {start.program.timeout:g} s; the program was at {answer.line}; allow more "
            "with --timeout SECONDS"
        )
    return "the program ended without calling a model on a GPU, so there is nothing to predict"


def _reason(answer: RehearsalAnswer, start: _Start) -> str:
    """Return what may be behind an error of the program, or what to do about it; empty: nothing is known."""
    error = answer.error or ""
    if (missing := _NO_MODULE.search(error)) is not None:
        return f"; install {missing[1]} for that Python, or name another Python: --python PATH"
    if "invalid device ordinal" in error:
        return "; say how many GPUs it finds, such as --gpu-type 4xh100"
    if _OTHER_VERSION.match(error) and (other := _other_versions(answer, start.folder)):
        return f"; {other}"
    if _NO_NETWORK.search(error):
        why = "--offline turned it off" if start.program.offline else "which it does not reach"
        return f"; it wants to download something from the network, {why}: give it the file first"
    if error.startswith("EOFError: EOF when reading a line"):
        return "; it asks for input, and a rehearsal types none: give its answers as arguments, or in the script"
    if _LAUNCHED.match(error):
        return "; a launcher sets it: give the whole launch line, such as torchrun --nproc-per-node 2 train.py"
    if "cpp_extension" in answer.line:
        return "; compiled extensions cannot be rehearsed: turn them off if it can do without, or measure it on a GPU"
    assumed = [f"; a value that was assumed may be why: {each}" for each in answer.doubts if " assumed" in each]
    return "".join(assumed[-1:])


def _other_versions(answer: RehearsalAnswer, folder: str) -> str:
    """Return the versions that the program's repository asks for and does not have, of what the error names if it does.

    Empty: it has all, or pins none.
    """
    file = Path(folder, answer.line.partition(", in ")[0].rpartition(":")[0])
    pins = pinned_versions((file.parent, *repository_folders(Path(folder))))
    others = {
        name: f"{pin.file} asks for {name} {pin.version}, and {answer.versions[name]} is installed"
        for name, pin in pins.items()
        if name in answer.versions and not answer.versions[name].startswith(pin.version)
    }
    named = [text for name, text in others.items() if name in f"{answer.error} {answer.line}"]
    return "; ".join(named or others.values())


_FRAME = re.compile(r'File "(?!<)(?![^"]*(?:site-packages|/lib/python\d))([^"]+)", line (\d+) in')
"""A line of faulthandler's that is in no library."""


def _last_words(run: IsolatedRun) -> str:
    """Return the line at which C++ crashed, if faulthandler printed it, and the last message."""
    said, fatal, dump = run.output.rpartition("Fatal Python error: ")
    if not fatal:
        return f": {run.last_line}"
    frame, thrown = _FRAME.search(dump), re.findall(r"what\(\): +(.+)", said)
    where = f", at {Path(frame[1]).name}:{frame[2]}" if frame else ""
    return f"{where}: {thrown[-1] if thrown else dump.splitlines()[0]}"


_SIZES = {"items": 1000, "words": 2048, "width": 1024, "height": 1024, "seconds": 30}
_MOST_ITEMS = 10**6


def synthetic_sizes(text: str | None) -> dict[str, Any] | None:
    """Return the sizes of synthetic items: ``synthetic,words=512,image=640x480,columns=question+answer``.

    Raises:
        InputError: it is something else.
    """
    if text is None:
        return None
    kind, *given = text.split(",")
    sizes: dict[str, Any] = {**_SIZES, "columns": []}
    for each in given:
        name, _, value = each.partition("=")
        if name == "columns":
            sizes[name] = value.split("+")
            continue
        numbers = value.split("x")
        names = ("width", "height") if name == "image" else (name,)
        if len(numbers) != len(names) or any(key not in _SIZES for key in names):
            kind = each
            break
        if not all(number.isdecimal() and 0 < int(number) <= _MOST_ITEMS for number in numbers):
            raise InputError(f"program.data: {each}: the size must be a whole number from 1 to {_MOST_ITEMS:,}")
        sizes.update(zip(names, map(int, numbers), strict=True))
    if kind != "synthetic":
        raise InputError(
            f"program.data: {kind!r} is unknown; write synthetic, or sizes too: synthetic,items=1000,words=2048,"
            "image=1024x1024,seconds=30,columns=question+answer"
        )
    return sizes


def _ending(run: IsolatedRun) -> str:
    """Return how the program ended, in words."""
    if run.report is None:
        return "no exit code"
    code = run.report.code
    if code >= 0:
        return f"exit code {code}"
    return Signals(-code).name if -code in {*Signals} else f"signal {-code}"
