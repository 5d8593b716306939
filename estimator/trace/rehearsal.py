"""Rehearsal: the user's own program, run without a GPU, and the memory that it would take on one.

The program runs in its own interpreter (``estimator/worker/rehearsal``): host tensors are real, GPU tensors have shapes
only. It ends after a few optimizer steps; what it writes is thrown away.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from ..budget import Components
from ..common.errors import CannotTellError, InputError, process_limit_error
from ..common.sizes import format_gib
from ..common.trust import find_program, why_not_found
from ..formula.ranges import TRACED, DoubtfulBytes, Doubts, StepDoubt, figure_ranges
from ..formula.rank_memory import context_bytes, workspace_bytes
from ..job.gpu_catalogue import Gpu, generation_of
from ..job.rules.frameworks import VersionRules
from ..job.settings import Software
from .allocator_report import allocator_settings
from .worker_pool import resident_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import IO

PROGRAM = Path(__file__).parents[1] / "worker" / "rehearsal" / "__main__.py"
DEFAULT_STEPS = 3
DEFAULT_SECONDS = 600.0
MAX_KEPT_OUTPUT = 1 << 16
"""Bytes of the program's output that are kept, from its end."""
_MAX_HOST_SHARE = 0.9
"""Share of the free host memory that a rehearsal may take."""
_START_SECONDS = 120.0
"""Time beyond the program's own in which Python starts and imports torch, also on a busy machine."""
_GRACE_SECONDS = 5.0
NO_TORCH = "cannot import torch"
"""Part of what the program that rehearses says in a Python without torch."""
_MAX_SHOWN = 300
"""Characters of a line of the program's output."""
_POLL_SECONDS = 0.2
_PYTHON_FLAGS_WITH_VALUE = frozenset({"-W", "-X"})
_LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "srun", "mpirun", "horovodrun", "ray")
_SILENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MPLBACKEND": "Agg",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}
"""Loggers that upload are off, and no CUDA context is made."""
_MEGABYTE = 1 << 20


class RehearsedPhase(msgspec.Struct, frozen=True):
    """The highest moment of a phase, in bytes."""

    allocated: int
    components: dict[str, int]


class RehearsedTensor(msgspec.Struct, frozen=True):
    """A large tensor that is allocated at the peak."""

    module: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    component: str
    line: str
    """File and line that made it."""


class OptimizerSteps(msgspec.Struct, frozen=True):
    """How often an optimizer has stepped."""

    optimizer: str
    steps: int


class RehearsalAnswer(msgspec.Struct, frozen=True):
    """What the program in the other interpreter has written."""

    ended: str
    line: str
    steps: list[OptimizerSteps]
    trained: int
    doubts: list[str]
    seconds: float
    host_bytes: int
    versions: dict[str, str]
    error: str | None = None
    phases: dict[str, RehearsedPhase] = {}
    peak_tensors: tuple[RehearsedTensor, ...] = ()
    peak_reserved: int = 0
    step: int = 0


class RehearsedPhaseJson(TypedDict):
    """The highest moment of a phase."""

    name: str
    """``loading``, ``forward``, ``backward`` or ``optimizer step``."""
    components: dict[str, int]
    """Bytes of each component, which sum to ``allocated_bytes``."""
    allocated_bytes: int
    """What tensors take, without cuBLAS's workspace."""


class RehearsedPeakJson(TypedDict):
    """The highest moment of all."""

    phase: str
    """The phase that it is in."""
    step: int
    """The optimizer step, from 1."""
    allocated_bytes: int
    """What tensors and cuBLAS's workspace take (``torch.cuda.max_memory_allocated``)."""
    reserved_bytes: int
    """What torch's allocator holds (``torch.cuda.max_memory_reserved``)."""
    device_bytes: int
    """What the device shows for the process, with the CUDA context."""
    low_bytes: int
    """Lower end of the range on the device."""
    high_bytes: int
    """Upper end of that range."""


class RehearsalJson(TypedDict):
    """A program that was rehearsed, and the memory that it would take on one GPU."""

    schema: int
    """Version of this format: 1."""
    method: str
    """``rehearsed``."""
    command: list[str]
    """The words of the command."""
    python: str
    """The interpreter that ran it."""
    versions: dict[str, str]
    """Versions of Python and of the libraries that the program imported."""
    gpu_type: str | None
    """The GPU that the program found; null: a Hopper GPU of 80 GiB."""
    optimizer_steps: dict[str, int]
    """By class of the optimizer."""
    trainable_parameters: int
    """Elements of all parameters that the optimizers have."""
    phases: list[RehearsedPhaseJson]
    """Phases of the step with the peak."""
    peak: RehearsedPeakJson
    """The highest of them."""
    largest: list[dict[str, Any]]
    """The largest tensors at the peak: module, shape, dtype, bytes, component, and the line that made each."""
    seconds: float
    """Time that the program ran."""
    host_bytes: int
    """Host memory that the rehearsal took."""
    assumptions: list[str]
    """What was assumed, one sentence each."""
    warnings: list[str]
    """What the figures depend on and is not known, one sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """A rehearsed program."""

    command: tuple[str, ...]
    python: Path
    gpu: Gpu | None
    answer: RehearsalAnswer
    context_bytes: int
    workspace_bytes: int
    """cuBLAS's workspace, which torch's allocator holds."""

    @property
    def phase(self) -> str:
        """The phase with the peak."""
        return max(self.answer.phases, key=lambda name: self.answer.phases[name].allocated)

    @property
    def allocated_bytes(self) -> int:
        """Allocated bytes of the peak."""
        return self.answer.phases[self.phase].allocated + self.workspace_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes that torch's allocator holds."""
        return max(self.answer.peak_reserved + self.workspace_bytes, self.allocated_bytes)

    @property
    def device_bytes(self) -> int:
        """Bytes that the device shows."""
        return self.reserved_bytes + self.context_bytes

    @property
    def range(self) -> tuple[int, int]:
        """The lowest and the highest bytes on the device that are to be expected.

        The shares are those of traced steps (``TRACED``); where sizes depend on values, the tensors of the step may be
        absent.
        """
        parts = dict(self.answer.phases[self.phase].components)
        parts["activations"] = parts.get("activations", 0) + parts.pop("inputs", 0)
        parts["temporary"] = parts.get("temporary", 0) + self.workspace_bytes
        components = Components(**parts, context=self.context_bytes)
        doubtful = DoubtfulBytes.of(
            components, allocated=self.allocated_bytes, reserved=self.reserved_bytes, outside=self.context_bytes
        )
        sizes_unknown = any("size depends on values" in each for each in self.answer.doubts)
        found = figure_ranges(
            doubtful,
            Doubts(step=self._step_doubt, allocator="plain"),
            TRACED,
            allocated=self.allocated_bytes,
            reserved=self.reserved_bytes,
            device=self.device_bytes,
            less=doubtful.step if sizes_unknown else 0,
        )
        return found.device.low_bytes, found.device.high_bytes

    @property
    def _step_doubt(self) -> StepDoubt:
        doubts = " ".join(self.answer.doubts)
        return "recurrent" if "cuDNN" in doubts else "compiled" if "torch.compile" in doubts else "framework"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the figure depends on and is not known."""
        answer = self.answer
        said = [f"{each}." for each in answer.doubts]
        if answer.ended == "time":
            said.append(f"The time was up after {_steps(answer)}, at {answer.line}: a later step may need more.")
        if answer.ended == "end" and answer.steps and all(each.steps < 2 for each in answer.steps):
            said.append("The program ended by itself after its first optimizer step: later ones may need more.")
        return tuple(said)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was assumed."""
        versions = ", ".join(f"{name} {number}" for name, number in self.answer.versions.items())
        card = self.gpu.label if self.gpu else "a Hopper GPU of 80 GiB"
        return (
            f"Rehearsed with {versions}, through {_steps(self.answer)}.",
            f"The program found {card}; CUDA context and cuBLAS workspaces are those of its generation.",
            "Workspaces of cuDNN are not counted.",
        )

    def to_json(self) -> RehearsalJson:
        """Return plain data."""
        answer, (low, high) = self.answer, self.range
        return {
            "schema": 1,
            "method": "rehearsed",
            "command": list(self.command),
            "python": str(self.python),
            "versions": answer.versions,
            "gpu_type": self.gpu.name if self.gpu else None,
            "optimizer_steps": {each.optimizer: each.steps for each in answer.steps},
            "trainable_parameters": answer.trained,
            "phases": [
                {"name": name, "components": phase.components, "allocated_bytes": phase.allocated}
                for name, phase in answer.phases.items()
            ],
            "peak": {
                "phase": self.phase,
                "step": answer.step,
                "allocated_bytes": self.allocated_bytes,
                "reserved_bytes": self.reserved_bytes,
                "device_bytes": self.device_bytes,
                "low_bytes": low,
                "high_bytes": high,
            },
            "largest": [msgspec.to_builtins(each) for each in answer.peak_tensors],
            "seconds": answer.seconds,
            "host_bytes": answer.host_bytes,
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }


def _steps(answer: RehearsalAnswer) -> str:
    return ", ".join(f"{each.steps} steps of {each.optimizer}" for each in answer.steps) or "no optimizer step"


def rehearse(
    command: Sequence[str],
    *,
    gpu: Gpu | None = None,
    steps: int = DEFAULT_STEPS,
    timeout: float = DEFAULT_SECONDS,
    python: str | None = None,
    environ: Mapping[str, str] | None = None,
    on_output: Callable[[str], None] = lambda _: None,
) -> Rehearsed:
    """Run a program without a GPU until its optimizers have stepped.

    Args:
        command: as it would be typed: ``python train.py --lr 1e-4``.
        gpu: what the program finds; None: a Hopper GPU of 80 GiB.
        steps: steps of each optimizer, the first included.
        timeout: seconds.
        python: its interpreter, instead of the one that the command names.
        environ: its environment; None: this process's.
        on_output: called with the end of the program's output if it fails.

    Raises:
        InputError: it is no command of Python's, or cannot be started.
        CannotTellError: it ended before an optimizer had stepped.
    """
    variables = dict(os.environ if environ is None else environ)
    interpreter, words, given = python_command(command, variables, python)
    _, conf = allocator_settings(variables) or (None, None)
    with tempfile.TemporaryDirectory(prefix="vramtop-rehearsal-", ignore_cleanup_errors=True) as folder:
        plan: dict[str, Any] = {
            "steps": steps,
            "gpus": 1,
            "seconds": timeout,
            "conf": conf,
            "card": _card(gpu),
            "answer": f"{folder}/answer.json",
            "scratch": folder,
        }
        file = Path(folder) / "plan.json"
        file.write_bytes(msgspec.json.encode(plan))
        run = _Run([str(interpreter), str(PROGRAM), str(file), *words], {**variables, **given, **_SILENT}, folder)
        run.wait(timeout)
        answer = _read(Path(plan["answer"]))
    if answer is None or not answer.phases or answer.ended in ("error", "exit"):
        if NO_TORCH not in run.last_line:
            on_output(run.output)
        raise CannotTellError(_failure(answer, run, timeout))
    generation = generation_of(gpu)
    rules = VersionRules(Software(), four_bit=False, titan=False, litgpt=False)
    return Rehearsed(
        command=tuple(command),
        python=interpreter,
        gpu=gpu,
        answer=answer,
        context_bytes=context_bytes(rules, generation),
        workspace_bytes=workspace_bytes(generation, setting=variables.get("CUBLAS_WORKSPACE_CONFIG")),
    )


def _card(gpu: Gpu | None) -> dict[str, Any]:
    if gpu is None:
        return {"name": "NVIDIA H100 80GB HBM3", "total_memory": 85_520_809_984, "capability": [9, 0]}
    return {
        "name": gpu.nvml_names[0] if gpu.nvml_names else gpu.name,
        "total_memory": gpu.total_bytes,
        "capability": list(gpu.compute_capability),
    }


def _read(file: Path) -> RehearsalAnswer | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=RehearsalAnswer)
    except (OSError, msgspec.MsgspecError):
        return None


def _failure(answer: RehearsalAnswer | None, run: _Run, timeout: float) -> str:
    """Return why there is no budget."""
    if run.stopped is not None:
        return run.stopped
    if answer is None:
        if NO_TORCH in run.last_line:
            return run.last_line
        return f"the program ended without an answer (exit code {run.code}): {run.last_line}"
    if answer.ended == "error":
        return f"the program failed in the rehearsal, at {answer.line}: {answer.error}"
    if answer.ended == "exit":
        return "the program ended with an error before an optimizer had stepped; its last words are above"
    if answer.ended == "time":
        return (
            f"no optimizer has stepped within {timeout:g} s; the program was at {answer.line}; give --timeout SECONDS"
        )
    return "the program ended without a backward pass, so there is nothing to predict"


class _Run:
    """A program under rehearsal, whose processes all end with it."""

    def __init__(self, words: list[str], environ: dict[str, str], folder: str) -> None:
        self.stopped: str | None = None
        """Why it was ended from outside."""
        self._kept = bytearray()
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**environ, "TMPDIR": folder},
                start_new_session=True,
            )
        except OSError as error:
            raise process_limit_error(error) or InputError(f"{words[0]} cannot be started: {error.strerror}") from None
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        self._reader = threading.Thread(target=self._keep, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    @property
    def code(self) -> int | None:
        """Its exit code."""
        return self._process.returncode

    @property
    def output(self) -> str:
        """The end of its output."""
        return self._kept.decode(errors="replace")

    @property
    def last_line(self) -> str:
        """Its last line that is not empty."""
        last = next((line for line in reversed(self.output.splitlines()) if line.strip()), "it printed nothing")
        return last.strip()[:_MAX_SHOWN]

    def wait(self, timeout: float) -> None:
        """Wait for its end; it is ended when the time is up, or the host's memory."""
        deadline = time.monotonic() + timeout + _START_SECONDS
        limit = int(_MAX_HOST_SHARE * _free_host_bytes())
        try:
            while not self._has_ended():
                if time.monotonic() > deadline:
                    self.stopped = f"the program did not end within {timeout:g} s; give --timeout SECONDS"
                    return
                held = resident_bytes(self._process.pid) or 0
                if held > limit:
                    self.stopped = (
                        f"the rehearsal took {format_gib(held)} GiB of this host's memory and was ended: the program"
                        " makes large tensors on the host"
                    )
                    return
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._reader.join(_GRACE_SECONDS)

    def _has_ended(self) -> bool:
        try:
            self._process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _keep(self, pipe: IO[bytes]) -> None:
        while chunk := os.read(pipe.fileno(), MAX_KEPT_OUTPUT):
            self._kept += chunk
            del self._kept[:-MAX_KEPT_OUTPUT]


def _free_host_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def python_command(
    command: Sequence[str], environ: Mapping[str, str], python: str | None = None
) -> tuple[Path, list[str], dict[str, str]]:
    """Return the interpreter of a command, the words that it would be given, and the variables that the line sets.

    Args:
        command: ``[NAME=VALUE ...] python [FLAG ...] FILE|-m MODULE|-c CODE ARGUMENT...``, an executable file of
            Python's (a console script), or ``accelerate launch`` or ``torchrun`` with one process.
        environ: the environment; ``PATH`` counts.
        python: the interpreter, instead of the command's.

    Raises:
        InputError: it is none of these.
    """
    words, given = _without_variables(command)
    if not words:
        raise InputError("no command given; write: vramtop rehearse -- python train.py ...")
    name = Path(words[0]).name
    if name in ("accelerate", "torchrun"):
        words = _of_one_process(name, words)
        name = "python"
    elif name in _LAUNCHERS:
        raise InputError(f"{name} starts several processes, of which a rehearsal runs one: write python SCRIPT ARGS")
    path = environ.get("PATH", os.defpath)
    if name.startswith(("python", "pypy")):
        program = python or words[0]
        rest = _without_flags(words[1:])
    else:
        file = words[0] if Path(words[0]).is_file() else str(find_program(words[0], path) or "")
        if not file:
            raise InputError(f"{words[0]}: {why_not_found(words[0], path)}")
        interpreter = "python3" if file.endswith(".py") else _interpreter(file)
        if interpreter is None:
            raise InputError(
                f"{words[0]} is no program of Python's; write the command that it runs: python train.py ..."
            )
        program = python or interpreter
        rest = [file, *words[1:]]
    found = find_program(program, path)
    if found is None:
        raise InputError(f"{program}: {why_not_found(program, path)}")
    if not rest:
        raise InputError("the command names no program; write: vramtop rehearse -- python train.py ...")
    if rest[0] not in ("-m", "-c") and not Path(rest[0]).is_file():
        raise InputError(f"{rest[0]}: there is no such file")
    return Path(found).absolute(), rest, given


def _without_variables(command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the words from the program on, and the variables before it."""
    words, given = list(command), {}
    if words[:1] == ["env"]:
        del words[0]
    while words and "=" in words[0] and words[0].partition("=")[0].isidentifier():
        name, _, value = words.pop(0).partition("=")
        given[name] = value
    return words[2:] if words[:2] == ["uv", "run"] else words, given


def _without_flags(words: list[str]) -> list[str]:
    """Return Python's words from the program on."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c"):
        at += 2 if words[at] in _PYTHON_FLAGS_WITH_VALUE else 1
    return words[at:]


def _of_one_process(launcher: str, words: list[str]) -> list[str]:
    """Return the command of Python's that a launcher runs, if it starts one process."""
    rest = words[2:] if words[1:2] == ["launch"] else words[1:]
    at = next((at for at, word in enumerate(rest) if word.endswith(".py") or word in ("-m", "--module")), None)
    if at is None:
        raise InputError(f"{shlex.join(words)} names no script; write: vramtop rehearse -- python train.py ...")
    flags = " ".join(rest[:at]).replace("=", " ").replace("_", "-").split()
    counts = [
        flags[i + 1]
        for i, word in enumerate(flags[:-1])
        if word in ("--num-processes", "--nproc-per-node", "--nnodes", "--num-machines")
    ]
    if any(count != "1" for count in counts) or {"--multi-gpu", "--use-fsdp", "--use-deepspeed", "--config-file"} & {
        *flags
    }:
        raise InputError(
            f"{launcher} starts several processes here, of which a rehearsal runs one without sharding: write python "
            f"{shlex.join(rest[at:])}"
        )
    return ["python", *(["-m", *rest[at + 1 :]] if not rest[at].endswith(".py") else rest[at:])]


def _interpreter(file: str) -> str | None:
    """Return the Python that a script's first line names; None: it is no script of Python's."""
    with Path(file).open("rb") as opened:
        line = opened.readline(256)
    words = line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        del words[0]
    return words[0] if words and Path(words[0]).name.startswith("python") else None
