"""Measured steps: the job's real steps in a process of their own, on GPUs or on the CPU, and what memory they take."""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, Literal, TypedDict

import msgspec

from ..budget import FieldsOf
from ..common.cancellation import current_token
from ..common.errors import CannotTellError
from ..job.job import Job
from ..model.find_config import ResolvedModel
from ..program.text_script import training_script
from ..program.training_script import How
from .allocator_report import VARIABLES
from .interpreters import Interpreter, choose_interpreter
from .start_python import start_python
from .worker_process import WORKER_PROGRAM

# The largest micro-batch that truly runs: predicted first, then a few real tries around the prediction.


MAX_TRIES = 3


class BatchSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a search."""

    predicted: int | None
    """Largest micro-batch that was predicted to fit; None: not even 1."""
    runs: int | None
    """Largest that ran; None: none did."""
    fails: int | None
    """Smallest that ran out of memory; None: none did."""
    tries: tuple[int, ...]

    @property
    def decided(self) -> bool:
        """True if no micro-batch between the two remains untried."""
        return self.fails is not None and self.fails - (self.runs or 0) == 1

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        if self.runs is None:
            return f"no micro-batch ran: {self.fails} runs out of memory" if self.fails else "no micro-batch was tried"
        if self.fails is None:
            return f"micro-batch {self.runs} runs; no larger one was tried"
        if self.decided:
            return f"micro-batch {self.runs} is the largest that runs: {self.fails} runs out of memory"
        return f"micro-batch {self.runs} runs and {self.fails} runs out of memory; sizes between them were not tried"


def find_largest_batch(
    predicted: int | None,
    run: Callable[[int], float | None],
    largest_if: Callable[[float], int | None],
    *,
    tries: int = MAX_TRIES,
) -> BatchSearch:
    """Try micro-batches, the predicted largest first, and close in on the largest that runs.

    Args:
        predicted: largest micro-batch that is predicted to fit; None: not even 1.
        run: runs a micro-batch; returns by how much its memory exceeds the prediction, as a factor; None: it ran out of
            memory.
        largest_if: the largest micro-batch predicted to fit if all predictions are multiplied by a factor.
        tries: at most.
    """
    runs: int | None = None
    fails: int | None = None
    tried: list[int] = []
    wanted: int | None = predicted or 1
    while wanted is not None and len(tried) < tries:
        tried.append(wanted)
        factor = run(wanted)
        if factor is None:
            fails = wanted
            guess = None
        else:
            runs = wanted
            guess = largest_if(factor)
        wanted = _next(runs or 0, fails, guess)
    return BatchSearch(predicted=predicted, runs=runs, fails=fails, tries=tuple(tried))


def _next(runs: int, fails: int | None, guess: int | None) -> int | None:
    """Return the micro-batch to try next, strictly between what ran and what failed; None: it is decided."""
    if fails is not None and fails - runs <= 1:
        return None
    if fails is None:
        return max(runs + 1, guess or 0)
    if guess is not None and runs < guess < fails:
        return guess
    return fails - 1 if fails - runs <= 3 else (runs + fails) // 2


# Figures of measured steps, as the ranks report them. What a device cannot know is None, never 0.


Device = Literal["cuda", "cpu"]


class PhasePeak(msgspec.Struct, frozen=True):
    """Highest memory of torch's allocator in one phase, over all steps."""

    allocated: int | None
    """Bytes that tensors held."""
    reserved: int | None
    """Bytes that the allocator held; None: unknown, as on the CPU."""


class StepPeak(PhasePeak, frozen=True, kw_only=True):
    """Highest memory of torch's allocator in one phase of one step."""

    step: int
    """Number of the optimizer step; 0: before the first one. Without training, 2 is the prompt, 3 the first token."""
    phase: str
    """Part of the step."""


class Allocator(msgspec.Struct, frozen=True):
    """What torch says of its allocator after the last step."""

    backend: str
    """Name of the allocator."""
    settings: dict[str, Any]
    """The allocator's settings in force (``PYTORCH_CUDA_ALLOC_CONF`` over the defaults), under torch's names."""
    counters: dict[str, int]
    """Entries of ``torch.cuda.memory_stats``."""


class OutOfMemory(msgspec.Struct, frozen=True):
    """Where a rank ran out of memory."""

    step: int
    """Number of the step; 0: before the first one."""
    phase: str
    """Part of the step."""
    message: str
    """Torch's message, in one line."""
    allocated_bytes: int | None
    """Held by tensors at the failure."""
    reserved_bytes: int | None
    """Held by torch's allocator at the failure."""

    @property
    def place(self) -> str:
        """Where, in words."""
        return f"in the {self.phase} of step {self.step}" if self.step else f"while {self.phase}"


class MeasuredRank(msgspec.Struct, frozen=True):
    """Memory of one rank by torch's own counters."""

    pid: int
    peaks: list[StepPeak]
    """In the order in which they were reached."""
    components: dict[str, int | None]
    """Bytes of weights, gradients and optimizer states; None: the steps did not get that far."""
    retries: int | None
    """Times that the allocator freed its cache because memory was full."""
    allocator: Allocator | None = None
    """None on the CPU."""
    out_of_memory: OutOfMemory | None = None
    versions: dict[str, str] = {}

    @property
    def phases(self) -> dict[str, PhasePeak]:
        """Highest memory in each phase, over all steps."""
        names = dict.fromkeys(each.phase for each in self.peaks)
        return {name: _highest(each for each in self.peaks if each.phase == name) for name in names}

    @property
    def allocated_bytes(self) -> int | None:
        """Peak of ``torch.cuda.memory_allocated``; on the CPU, of the storages."""
        return _highest(self.peaks).allocated

    @property
    def reserved_bytes(self) -> int | None:
        """Peak of ``torch.cuda.memory_reserved``; None on the CPU."""
        return _highest(self.peaks).reserved

    @property
    def allocated_by_step_bytes(self) -> list[int | None]:
        """Allocated peak of each step."""
        steps = sorted({each.step for each in self.peaks if each.step})
        return [_highest(each for each in self.peaks if each.step == step).allocated for step in steps]


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """A job's measured steps."""

    device: Device
    ranks: tuple[MeasuredRank, ...]
    """Figures of the ranks; of a run that ended out of memory, those of ranks that reported any."""
    versions: dict[str, str]

    @property
    def highest(self) -> MeasuredRank:
        """The rank with the highest peak; of a run that ended out of memory, the one that did."""
        failed = [rank for rank in self.ranks if rank.out_of_memory]
        return failed[0] if failed else max(self.ranks, key=_peak)

    @property
    def out_of_memory(self) -> OutOfMemory | None:
        """Where a rank ran out of memory; None: the steps ran."""
        return self.highest.out_of_memory

    def to_json(self) -> "MeasuredStepJson":
        """Return the figures of the rank with the highest peak, and of all ranks."""
        rank, failed = self.highest, self.out_of_memory
        return {
            "max_allocated_bytes": rank.allocated_bytes,
            "max_reserved_bytes": rank.reserved_bytes,
            "allocated_by_step_bytes": rank.allocated_by_step_bytes,
            "phases": msgspec.to_builtins(rank.phases),
            "by_step": msgspec.to_builtins(rank.peaks),
            "components": rank.components,
            "retries": rank.retries,
            "allocator": msgspec.to_builtins(rank.allocator),
            "ranks": [
                {"max_allocated_bytes": each.allocated_bytes, "max_reserved_bytes": each.reserved_bytes}
                for each in self.ranks
            ],
            "out_of_memory": None if failed is None else msgspec.to_builtins(failed),
        }


def _peak(rank: MeasuredRank) -> int:
    return rank.reserved_bytes or rank.allocated_bytes or 0


def _highest(peaks: Iterable[PhasePeak]) -> PhasePeak:
    """Return the highest known value of each figure; None where none is known."""
    found = list(peaks)
    return PhasePeak(
        max((each.allocated for each in found if each.allocated is not None), default=None),
        max((each.reserved for each in found if each.reserved is not None), default=None),
    )


# Runs a job's real steps in a process of its own, in torchrun's where it has several ranks, and ends all of them.


_PROGRAM = WORKER_PROGRAM.parent / "measure" / "__main__.py"
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
    script = _script(job, model, steps, device)
    interpreter = choose_interpreter(python, environ)
    with tempfile.TemporaryDirectory(prefix="vramtop-measure-") as folder, tempfile.TemporaryFile() as stderr:
        (Path(folder) / "train.py").write_text(script, encoding="utf-8")
        plan = {
            "folder": folder,
            "device": device,
            "steps": steps,
            "limits": [place.limit_bytes for place in places],
            "keeps": [place.keep_bytes for place in places],
        }
        process = start_python(
            interpreter.path, _PROGRAM, environ=_environment(environ, places), stderr=stderr, own_session=True
        )
        run = _Run(process, Path(folder), len(places), interpreter, stderr)
        try:
            with current_token().on_cancel(lambda: _end(process)):
                run.send(plan)
                run.wait(timeout, on_stage)
        finally:
            _end(process)
            run.end_ranks()
        return run.result(device)


def _script(job: Job, model: ResolvedModel, steps: int, device: Device) -> str:
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
    return training_script(
        msgspec.structs.replace(job, parallel=parallel), model, how=How(steps=steps, on_cpu=device == "cpu")
    )


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

    def send(self, plan: Mapping[str, Any]) -> None:
        """Write the plan and close the pipe."""
        pipe = self._process.stdin
        assert pipe is not None  # noqa: S101 - stdin=PIPE
        data = msgspec.json.encode(plan) + b"\n"
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is seen soon
            while data:
                data = data[pipe.write(data) or 0 :]
            pipe.close()

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
        try:
            ranks = tuple(msgspec.convert(each, MeasuredRank) for each in answers)
        except msgspec.ValidationError as error:
            raise CannotTellError(
                f"vramtop cannot read the measured figures ({error}); this is a bug in vramtop, please report it"
            ) from None
        return MeasuredStep(device=device, ranks=ranks, versions=ranks[0].versions)

    def _failure(self) -> str:
        """Return why there are no figures: the sentence of the rank that failed first, or how one ended."""
        files = [self._folder / f"{rank}.failed.json" for rank in self._ranks]
        first = min((each for each in files if each.exists()), key=lambda each: each.stat().st_mtime_ns, default=None)
        where = f"(under {self._interpreter.path})"
        error = self._stderr_text()
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

    def _stderr_text(self) -> str:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(size - (1 << 16), 0))
        return self._stderr.read().decode(errors="replace")

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


# A job made so small that its steps run on a CPU within seconds: the same kind of model and settings.


_SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    "num_key_value_heads": 2,
    **dict.fromkeys(("intermediate_size", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank"), 16),
    "qk_rope_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "sliding_window": 16,
    "query_pre_attn_scalar": 16,
    "global_head_dim": 16,
    "embedding_size": 64,
    "vocab_size": 256,
    "vocab_size_per_layer_input": 256,
}
"""Sizes by their names in configs; a size that is smaller, or None, stays."""
_MICRO_BATCH, _SEQUENCE_LENGTH = 2, 32


def tiny_job(job: Job, model: ResolvedModel) -> Job:
    """Return the job with a tiny model, short sequences, and at most two ranks in each dimension.

    A model that is Python code stays as it is.
    """
    training = msgspec.structs.replace(
        job.training,
        micro_batch=min(job.training.micro_batch, _MICRO_BATCH),
        sequence_length=min(job.training.sequence_length, _SEQUENCE_LENGTH),
        gradient_accumulation=min(job.training.gradient_accumulation, 2),
    )
    parallel = msgspec.structs.replace(
        job.parallel,
        **{name: min(2, getattr(job.parallel, name)) for name in ("data_shard", "data_replicate", "tensor")},
    )
    lora = job.lora and msgspec.structs.replace(job.lora, rank=min(job.lora.rank, 8))
    changed = msgspec.structs.replace(job, training=training, parallel=parallel, lora=lora, name=f"tiny {job.label}")
    if model.source == "code" or model.code is not None:
        return changed
    attention = job.model.attention if job.model.attention in ("sdpa", "eager") else "sdpa"  # others are CUDA's alone
    spec = msgspec.structs.replace(job.model, id=None, config=_shrunk(dict(model.config)), attention=attention)
    return msgspec.structs.replace(changed, model=spec)


def _shrunk(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config with small sizes, those of nested configs among them."""
    made: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and name.endswith("_config"):
            made[name] = _shrunk(value)
        elif name in _SIZES and isinstance(value, int) and not isinstance(value, bool):
            made[name] = min(value, _SIZES[name])
        elif name == "layer_types" and isinstance(value, list):
            made[name] = value[-_SIZES["num_layers"] :]
        elif name.endswith("_token_id") and isinstance(value, int):
            made[name] = min(value, _SIZES["vocab_size"] - 1)
        elif name.endswith("_token_id") and isinstance(value, list):
            made[name] = [min(each, _SIZES["vocab_size"] - 1) for each in value]
        else:
            made[name] = value
    return made


# The JSON of measured steps, key by key (``vramtop measure --json``); its schema is made from these types.


class RankPeaksJson(TypedDict):
    """Peaks of one rank by torch's own counters."""

    max_allocated_bytes: int | None
    """Peak of `torch.cuda.memory_allocated`; null: unknown."""
    max_reserved_bytes: int | None
    """Peak of `torch.cuda.memory_reserved`; null: unknown, as on the CPU."""


class MeasuredStepJson(RankPeaksJson):
    """Memory of a job's real steps: of the rank with the highest peak, or that ran out of memory."""

    allocated_by_step_bytes: list[int | None]
    """Peak of each optimizer step, in bytes that tensors hold."""
    phases: dict[str, Annotated[dict[str, Any], FieldsOf(PhasePeak)]]
    """Highest memory of torch's allocator in each phase, over all steps."""
    by_step: list[Annotated[dict[str, Any], FieldsOf(StepPeak)]]
    """Highest memory of torch's allocator in each phase of each step, in their order."""
    components: dict[str, int | None]
    """Bytes of weights, gradients and optimizer states; null: the steps did not get that far."""
    retries: int | None
    """Times that the allocator freed its cache because memory was full; null: unknown, as on the CPU."""
    allocator: Annotated[dict[str, Any], FieldsOf(Allocator)] | None
    """What torch says of its allocator after the last step; null: unknown, as on the CPU."""
    ranks: list[RankPeaksJson]
    """Peaks of every rank."""
    out_of_memory: Annotated[dict[str, Any], FieldsOf(OutOfMemory)] | None
    """Where a rank ran out of memory; null: the steps ran."""
