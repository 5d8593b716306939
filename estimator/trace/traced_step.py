"""Rehearses two steps of the script that stands for a job, in a worker, and returns what torch allocated."""

import os
import shlex
from typing import Any

import msgspec

from ..budget import LargeTensor, PhaseName
from ..common.errors import CannotTellError
from ..job.job import Job
from ..job.resolved_job import own_optimizer_code, resolve_job
from ..job.rules.version_rules import steps_take_same_memory
from ..model.find_config import ResolvedModel
from ..program.text_script import training_script
from ..program.training_script import How, start_command
from .allocator_report import ReservedMemory
from .answer_cache import cached_request
from .interpreters import choose_interpreter

_TIMEOUT_SECONDS = 900
_STEPS = 3
"""Optimizer steps of a script of which the second one is traced."""
_CARD = {"name": "NVIDIA H100 80GB HBM3", "total_memory": 1 << 50, "capability": [9, 0], "context": 0, "workspace": 0}
"""The GPU that a job's script finds: as much memory as it asks for."""


class TracedPhase(msgspec.Struct, frozen=True):
    """The moment with the highest memory in one phase of the second step."""

    allocated: int
    components: dict[str, int]


class StepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What was allocated in a step."""

    phases: dict[PhaseName, TracedPhase] = {}
    peak_tensors: tuple[LargeTensor, ...] = ()
    timeline: tuple[tuple[int, int], ...] = ()
    """(event, allocated bytes) of the step."""
    timeline_components: dict[str, tuple[int, ...]] = {}
    timeline_phases: tuple[tuple[PhaseName, int], ...] = ()
    """Each phase and its first event."""

    @property
    def events(self) -> list[int]:
        """Events of the timeline."""
        return [event for event, _ in self.timeline]


class Trace(StepSummary, frozen=True, kw_only=True):
    """A worker's answer to the request ``trace``, about the second step."""

    parameters: int
    trainable: int
    reserved: ReservedMemory
    """On a GPU of unlimited memory."""
    allocations: str
    """All allocations, packed, to replay on a GPU of some size."""
    versions: dict[str, str]
    doubts: tuple[str, ...] = ()
    """Sentences about what the figures depend on and is not known."""


def trace_job(
    job: Job,
    model: ResolvedModel,
    *,
    allocator_conf: str | None = None,
    python: str | None = None,
    any_version: bool = False,
) -> Trace:
    """Return the trace of a job, from the cache if it was traced before.

    Args:
        job: the job.
        model: its config.
        allocator_conf: the allocator's settings.
        python: the interpreter with torch and transformers; None: searched for.
        any_version: also where the interpreter's libraries are not of the versions that the job states.

    Raises:
        InputError: ``python`` does not exist.
        CannotTellError: no interpreter can run it, or tracing does not support the job.
    """
    trace_request(job, model)  # what has no script is refused before a process starts
    interpreter = choose_interpreter(python, os.environ)
    request = trace_request(job, model, allocator_conf, transformers=interpreter.transformers)
    same = steps_take_same_memory(job, torch=interpreter.torch, transformers=interpreter.transformers)
    if not (same or any_version):
        raise CannotTellError(
            f"the job uses other versions than torch {interpreter.torch} and transformers {interpreter.transformers} "
            f"of {interpreter.path}; name a Python with its versions (--python)"
        )
    return cached_request("traces", interpreter, request, Trace, _TIMEOUT_SECONDS)


def trace_request(
    job: Job, model: ResolvedModel, allocator_conf: str | None = None, *, transformers: str | None = None
) -> dict[str, Any]:
    """Return the worker's request for the trace of a job.

    Args:
        job: the job.
        model: its config.
        allocator_conf: the allocator's settings.
        transformers: version for which the script is written.

    Raises:
        CannotTellError: no script stands for the job.
    """
    ranks = job.parallel.world_size
    gpus = job.parallel.data_shard if job.parallel.sharding in ("hybrid", "hybrid_grad_op") else ranks  # of a node
    *launcher, file = shlex.split(start_command(job, "train.py"))
    start = ["-m", "torch.distributed.run", *launcher[1:], file] if launcher[0] == "torchrun" else [file]
    code = model.code or own_optimizer_code(job)
    how = How(steps=_STEPS, transformers=transformers)
    text = training_script(msgspec.structs.replace(job, name="the job"), model, how=how)
    return {
        "op": "trace",
        "script": {"text": text, "start": start, "gpus": gpus, "card": _CARD},
        "config": {key: value for key, value in model.config.items() if key != "quantization_config"},
        "task": job.model.task,
        "least_rounds": _least_rounds(job, model),
        "allocator": {"conf": allocator_conf},
        **({} if code is None else {"code": dict(code)}),
    }


def _least_rounds(job: Job, model: ResolvedModel) -> int | None:
    """Return the fewest rounds of layers that show how more of them repeat; None: all layers have to be traced.

    FSDP2 gathers a unit ahead. FSDP1's blocks wait for the GPU until a queue of a fixed length is full, and buckets
    (DDP's, DeepSpeed's) fill across layers.
    """
    resolved, parallel = resolve_job(job), job.parallel
    targets = () if job.lora is None or isinstance(job.lora.targets, str) else job.lora.targets
    own_layers = resolved.trainable is not None or any(part.isdigit() for each in targets for part in each.split("."))
    if model.code is not None or own_layers or parallel.fsdp_units == "model" or parallel.fsdp_min_unit_parameters:
        return None
    if parallel.world_size == 1:
        return 2
    return 3 if resolved.strategy.fsdp2 else None
