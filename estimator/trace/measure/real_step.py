"""Runs a job's real steps in a process of its own, in torchrun's where it has several ranks, and ends all of them."""

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from ...common.allocator_variables import VARIABLES
from ...common.cancellation import current_token
from ...common.errors import CannotTellError
from ...job.job import Job
from ...model.find_config import ResolvedModel
from ...program.text_script import training_script
from ...program.training_script import How
from ..installed_packages import Interpreter
from ..interpreters import choose_interpreter
from ..start_python import start_python
from ..worker_process import WORKER_PROGRAM, convert_answer
from .measured_step import Device, MeasuredRank, MeasuredStep

_STAGES = ("ready", "context", "first step", "steady")
"""Stages at which each rank waits until memory was read from outside; before the first one, no GPU is touched."""
_POLL_SECONDS = 0.02
_END_SECONDS = 5.0
"""Time for torchrun to end its ranks; then the kernel does, as their parent is killed."""
_RANK_VARIABLES = re.compile(r"(?:(?:LOCAL_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE)|MASTER_(?:ADDR|PORT)|TORCHELASTIC_\w+)")
_EXIT = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*exitcode\s*:\s*(-?\d+)")
"""In torchrun's report of failures (torch/distributed/elastic/multiprocessing/errors), which ends with the one that it
saw first."""
OnStage = Callable[[str, Sequence[int]], None]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank runs."""

    cuda_device: str | None = None
    """Entry of CUDA_VISIBLE_DEVICES; None on the CPU."""
    keep_bytes: int | None = None
    """Bytes of the GPU that the rank must leave free, since others use it too; None: it may fill the GPU."""
    limit_bytes: int | None = None
    """Bytes that torch may allocate; None: no limit of its own."""


def run_real_step(
    job: Job,
    model: ResolvedModel,
    places: Sequence[Place],
    *,
    device: Device,
    steps: int = 3,
    timeout: float = 600,
    python: str | None = None,
    environ: Mapping[str, str] | None = None,
    on_stage: OnStage = lambda _stage, _pids: None,
) -> MeasuredStep:
    """Run the steps, and return their memory; running out of memory is a result too.

    Args:
        job: the job.
        model: its config.
        places: one for each rank.
        device: its kind.
        steps: optimizer steps.
        timeout: seconds after which everything is ended, from the first stage on.
        python: the interpreter with torch and transformers; None: searched for.
        environ: its environment; None: this process's.
        on_stage: called when all ranks have reached a stage, with their pids: ``ready`` before they touch their GPUs,
            ``context`` once their CUDA contexts exist, ``first step`` after that (without training, after the prompt),
            ``steady`` after the last step, while they still hold their memory.

    Raises:
        InputError: ``python`` does not exist.
        CannotTellError: the job cannot be measured here, a rank died, or it took too long.
    """
    environ = os.environ if environ is None else environ
    _script(job, model, steps, device, None)  # what cannot be measured is refused before a process starts
    interpreter = choose_interpreter(python, environ)
    script = _script(job, model, steps, device, interpreter.transformers)
    with tempfile.TemporaryDirectory(prefix="vramtop-measure-") as folder, tempfile.TemporaryFile() as stderr:
        (Path(folder) / "train.py").write_text(script, encoding="utf-8")
        plan = {
            "folder": folder,
            "device": device,
            "steps": steps,
            "trains": job.training.mode == "train",
            "limits": [place.limit_bytes for place in places],
            "keeps": [place.keep_bytes for place in places],
        }
        (Path(folder) / "plan.json").write_bytes(msgspec.json.encode(plan))
        environ = _environment(environ, places)
        process = start_python(
            interpreter.path, WORKER_PROGRAM, "measure", folder, environ=environ, stderr=stderr, own_session=True
        )
        run = _Run(process, Path(folder), len(places), interpreter, stderr)
        try:
            with current_token().on_cancel(lambda: _end(process)):
                run.wait(timeout, on_stage)
        finally:
            _end(process)
            run.end_ranks()
        return run.result(device)


def _script(job: Job, model: ResolvedModel, steps: int, device: Device, version: str | None) -> str:
    """Return the job's script, for as many ranks as are run.

    Raises:
        CannotTellError: none stands for the job, or it needs several nodes.
    """
    copies = min(2, job.parallel.data_replicate)
    if device == "cpu" and job.parallel.data_shard > 1:
        raise CannotTellError(f"{job.parallel.strategy} shards over GPUs alone; without --cpu it can be measured")
    if copies > 1 and job.parallel.sharding in ("hybrid", "hybrid_grad_op"):
        raise CannotTellError("FSDP1's hybrid sharding has a copy on each node, and this is one")
    parallel = msgspec.structs.replace(job.parallel, data_replicate=copies)
    how = How(steps=steps, on_cpu=device == "cpu", transformers=version)
    return training_script(msgspec.structs.replace(job, parallel=parallel), model, how=how)


def rank_count(job: Job) -> int:
    """Return the ranks that are run: of copies two, as more take no more memory."""
    parallel = job.parallel
    return parallel.tensor * parallel.data_shard * min(2, parallel.data_replicate)


class _Run:
    """A started process and what its ranks have written."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        folder: Path,
        ranks: int,
        interpreter: Interpreter,
        stderr: IO[bytes],
    ) -> None:
        self._process = process
        self._folder = folder
        self._ranks = range(ranks)
        self._interpreter = interpreter
        self._stderr = stderr
        self._waiting = list(_STAGES)

    def wait(self, timeout: float, on_stage: OnStage) -> None:
        """Wait until the process ends, and answer its ranks at each stage.

        Raises:
            CannotTellError: it takes too long, from its start to the first stage or from there to its end.
        """
        deadline = time.monotonic() + timeout
        while self._process.poll() is None:
            if self._waiting and self._answer(self._waiting[0], on_stage) == _STAGES[0]:
                deadline = time.monotonic() + timeout
            if time.monotonic() > deadline:
                started = len(self._waiting) < len(_STAGES) - 1
                reached = "steps were running" if started else "no step had started"
                raise CannotTellError(f"no result within {timeout:g} s ({reached}); allow more with --timeout SECONDS")
            time.sleep(_POLL_SECONDS)

    def _answer(self, stage: str, on_stage: OnStage) -> str | None:
        """Answer a stage that all ranks have reached, and return it; None: they have not."""
        found = [self._read(rank, stage) for rank in self._ranks]
        if any(each is None for each in found):
            return None
        on_stage(stage, [each["pid"] for each in found if each is not None])
        (self._folder / f"{stage}.go").touch()
        self._waiting.remove(stage)
        return stage

    def _read(self, rank: int, stage: str) -> dict[str, Any] | None:
        try:
            text = (self._folder / f"{rank}.{stage}.json").read_bytes()
        except FileNotFoundError:
            return None
        return msgspec.json.decode(text, type=dict[str, Any])

    def result(self, device: Device) -> MeasuredStep:
        """Return the figures.

        Raises:
            CannotTellError: a rank failed, or ended without an answer.
        """
        done = [self._read(rank, "done") for rank in self._ranks]
        answers = [each for each in done if each is not None]
        if len(answers) < len(done) and not any(each.get("out_of_memory") for each in answers):
            raise CannotTellError(self._failure())
        ranks = tuple(convert_answer(each, MeasuredRank) for each in answers)
        return MeasuredStep(device=device, ranks=ranks, versions=ranks[0].versions)

    def _failure(self) -> str:
        """Return why there are no figures: the sentence of the rank that failed first, or how one ended."""
        files = [self._folder / f"{rank}.failed.json" for rank in self._ranks]
        first = min((each for each in files if each.exists()), key=lambda each: each.stat().st_mtime_ns, default=None)
        where = f"(under {self._interpreter.path})"
        self._stderr.seek(max(self._stderr.seek(0, os.SEEK_END) - (1 << 16), 0))
        error = self._stderr.read().decode(errors="replace")
        exits: list[tuple[int | None, int]] = [(int(each[1]), int(each[2])) for each in _EXIT.finditer(error)]
        exits = exits or [(None, self._process.returncode)]
        killed = [each for each in exits if each[1] == -signal.SIGKILL]  # which the others may have failed of
        rank, code = (killed or exits)[-1]
        died = code < 0 and (rank is None or not files[rank].exists())
        if first is not None and not died:
            found = msgspec.json.decode(first.read_bytes(), type=dict[str, Any])
            return f"{found.get('error')} {where}"
        name = "the process" if len(self._ranks) == 1 or rank is None else f"rank {rank}"
        if code < 0:
            hint = "; the machine's RAM may have run out" if code == -signal.SIGKILL else ""
            return f"{name} was killed by signal {-code} ({signal.Signals(-code).name}){hint} {where}"
        lines = [line.strip() for line in error.splitlines() if line.strip()]
        return f"{name} ended without a result{f': {lines[-1][:300]}' if lines else ''} {where}"

    def end_ranks(self) -> None:
        """Wait until the ranks, which die with their parent, have let go of their GPUs."""
        pids = [found["pid"] for rank in self._ranks if (found := self._read(rank, "context"))]
        until = time.monotonic() + _END_SECONDS
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)


def _environment(environ: Mapping[str, str], places: Sequence[Place]) -> dict[str, str]:
    """Return the environment of the ranks: the caller's without the variables of a run that it may belong to."""
    kept = {name: value for name, value in environ.items() if not _RANK_VARIABLES.fullmatch(name)}
    if places[0].cuda_device is None:
        kept = {name: value for name, value in kept.items() if name not in VARIABLES}
    return {**kept, "CUDA_VISIBLE_DEVICES": ",".join(place.cuda_device or "" for place in places).strip(",")}


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process: torchrun ends its ranks when it is told to; where it does not in time, the kernel does."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
