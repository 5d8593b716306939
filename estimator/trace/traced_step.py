"""Runs two training steps of the real model on fake tensors in a worker, and returns what torch allocated."""

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from ..budget import LargeTensor, PhaseName
from ..common.errors import CannotTellError
from ..formula.layer_context import norm_kind
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, resolve_job
from ..job.rules.frameworks import steps_take_same_memory
from ..model.families import LIGER_PATCHES, family_of
from ..model.find_config import ResolvedModel
from ..model.placement import placing_request
from .allocator_report import ReservedMemory
from .exact_optimizer import own_code
from .interpreters import Interpreter, choose_interpreter
from .worker_pool import cache_file, cached_request
from .worker_process import WORKER_PROGRAM, UnsupportedRequestError

_NOT_TRACED = ("trainable", "varying_lengths")
"""Beginnings of the training settings of which the worker's steps know nothing: they take full sequences."""
_CACHE_VERSION = 3


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
    gpu: int | None = None
    """The GPU with the highest peak, where a device map uses several; None: there is one."""


def trace_job(
    job: Job,
    model: ResolvedModel,
    *,
    allocator_conf: str | None = None,
    gpu_bytes: int | None = None,
    python: str | None = None,
    timeout: float = 900,
    hint: str = "",
) -> Trace:
    """Return the trace of a job, from the cache if it was traced before.

    Args:
        job: the job.
        model: its config.
        allocator_conf: the allocator's settings.
        gpu_bytes: memory of a GPU that a device map may fill; None: not known.
        python: the interpreter with torch and transformers; None: searched for.
        timeout: seconds.
        hint: what to do about a job that tracing does not support, at the end of the error.

    Raises:
        InputError: ``python`` does not exist.
        CannotTellError: no interpreter can run it, or tracing does not support the job.
    """
    interpreter = choose_interpreter(python, os.environ)
    latents, versions = bool(model.config.get("kv_lora_rank")), (interpreter.torch, interpreter.transformers)
    if not steps_take_same_memory(job, torch=versions[0], transformers=versions[1], latents=latents):
        raise CannotTellError(
            f"the job uses other versions than torch {interpreter.torch} and transformers {interpreter.transformers} "
            f"of {interpreter.path}; name a Python with its versions (--python), or use method exact, which has rules "
            "for them"
        )
    request = trace_request(job, model, allocator_conf, gpu_bytes)
    file = cache_file("traces", _cache_key(request, interpreter))
    try:
        return cached_request(interpreter, request, Trace, file=file, version=_CACHE_VERSION, timeout=timeout)
    except UnsupportedRequestError as error:
        raise CannotTellError(f"{error.message}{hint}") from None


def trace_request(
    job: Job, model: ResolvedModel, allocator_conf: str | None = None, gpu_bytes: int | None = None
) -> dict[str, Any]:
    """Return the worker's request for the trace of a job."""
    return {
        "op": "trace",
        "config": {key: value for key, value in model.config.items() if key != "quantization_config"},
        "task": job.model.task,
        "attention": job.model.attention,
        "training": {key: value for key, value in asdict(job.training).items() if not key.startswith(_NOT_TRACED)},
        "trainable": trainable_request(job),
        "optimizer": optimizer_class(job),
        "lora": _lora(job),
        "parallel": _parallel(job),
        "placing": placing_request(job, gpu_bytes),
        "older": _older_versions(job, model),
        "checkpoints_units": resolve_job(job).checkpoints_units,
        "zero": None if job.zero is None else asdict(job.zero),
        "rollout": job.rollout is not None,
        "loop": loop_request(job, str(model.config.get("model_type"))),
        "code": _user_code(job, model),
        "allocator": {"conf": allocator_conf},
    }


def _parallel(job: Job) -> dict[str, Any]:
    """Return how the job is spread over ranks, with the type in which FSDP2 reduces gradients."""
    settings, resolved = asdict(job.parallel), resolve_job(job)
    if resolved.strategy.fsdp2 and job.parallel.reduce_dtype is None:
        compute = resolved.precision.name.partition("-")[0]
        settings["reduce_dtype"] = "fp32" if resolved.widths.reduce > resolved.widths.compute else compute
    return settings


def _lora(job: Job) -> dict[str, Any] | None:
    """Return the adapters with the dtypes that framework and versions give them, and the weights beside them."""
    if job.lora is None:
        return None
    resolved = resolve_job(job)
    rules, precision = resolved.adapters, resolved.precision
    weights = precision.name if precision.half_weights else "fp32"  # what other tools than peft make adapters of
    return {
        **{name: getattr(job.lora, name) for name in ("rank", "targets", "quantization")},
        "dropout": rules.dropout,
        "fp32_parameters": rules.prepared,
        "adapter_dtype": rules.dtype or (None if resolved.framework.fp32_adapters else weights),
        "autocast": rules.autocasts,
    }


def _older_versions(job: Job, model: ResolvedModel) -> dict[str, Any]:
    """Return what the versions that the job states do otherwise than later ones; the worker imitates it."""
    rules, resolved = resolve_job(job).versions, resolve_job(job)
    names = family_of(str(model.config.get("model_type"))).separate_expert_names if rules.separates_experts else None
    # blocks that are recomputed have a gradient at their input: the embedding's, or one that peft asks for
    passes = job.lora is not None or resolved.trainable is None
    return {
        "copies_shifted_logits": rules.copies_shifted_logits,
        "casts_logits_in_model": rules.casts_logits_in_model,
        "expert_names": list(names) if names else None,
        "reduces_in_own_pool": rules.reduces_in_own_pool,
        "keeps_quantized_inputs": rules.keeps_quantized_inputs,
        "zeroes_gradients": rules.zeroes_gradients,
        "frees_outside_units": rules.frees_outside_units,
        "lazy_states": rules.lazy_states,
        "reduces_whole_modules": rules.reduces_whole_modules,
        "reentrant_checkpoints": not rules.checkpoints_with_gradient and passes and not resolved.strategy.fsdp,
        "checkpoints_without_gradient": not rules.checkpoints_with_gradient and not passes,
    }


def trainable_request(job: Job) -> dict[str, Any] | None:
    """Return the rules for which parameters train, for the worker's requests; None: the job has none."""
    rules = resolve_job(job).trainable
    if rules is None or job.training.mode != "train":
        return None
    names = ("" if rules.optional else pattern for pattern in rules.patterns)
    texts = zip(rules.rules, names, strict=True)
    return {"rules": [[*rule, name] for rule, name in texts], "otherwise": rules.otherwise}


def optimizer_class(job: Job) -> dict[str, Any] | None:
    """Return the class with which the worker steps, for its request; None: no class can be traced, or no step."""
    if job.training.optimizer_class is not None:
        return {
            "path": job.training.optimizer_class,
            "options": dict(job.training.optimizer_options or {}),
            "own": own_code(job) is not None,
        }
    rules = resolve_job(job).optimizer
    if rules.torch_class is None:
        return _bitsandbytes(job)
    given = {name: value for name, value in rules.options.items() if value}  # what is off is off by default
    return {"path": rules.torch_class, "options": {**given, **rules.torch_options}}


def _bitsandbytes(job: Job) -> dict[str, Any] | None:
    """Return the worker's stand-in for bitsandbytes' classes; None: the optimizer is none of them."""
    resolved = resolve_job(job)
    states = resolved.optimizer.bitsandbytes_states
    if states is None:
        return None
    options = {"states": states[0], "bits": states[1], "paged": resolved.optimizer.paged}
    return {
        "path": "bitsandbytes",
        "options": {**options, "whole_embeddings": resolved.framework.fp32_embedding_states},
        "library": ":".join(resolved.optimizer.class_names[0].rsplit(".", 1)),
    }


def _user_code(job: Job, model: ResolvedModel) -> dict[str, Any] | None:
    """Return the user's code that the worker may run: the model's, or that of a tensor-parallel plan or optimizer."""
    if model.code is not None:
        return dict(model.code)
    if isinstance(job.parallel.tensor_plan, str):
        return {"folder": str(Path(job.model.code_folder or "").resolve())}
    return own_code(job) if job.training.mode == "train" else None


def _cache_key(request: dict[str, Any], interpreter: Interpreter) -> list[Any]:
    """Return what a trace depends on: the request, the libraries' versions, and the worker's own code."""
    programs = sorted(WORKER_PROGRAM.parent.rglob("*.py"))
    code = [hashlib.sha256(program.read_bytes()).hexdigest() for program in programs]
    return [request, [interpreter.torch, interpreter.transformers, interpreter.peft], code]


# The rules of a job's training loop, as the worker's request states them.


_COMPILED = ("norm", "mlp")


def loop_request(job: Job, family: str) -> dict[str, Any]:
    """Return how the job's loop differs from the Trainer's, for the worker's request.

    Args:
        job: the job.
        family: the config's ``model_type``, on which it depends what Liger-Kernel patches.
    """
    resolved = resolve_job(job)
    framework, training = resolved.framework, job.training
    compiles = training.compile
    liger = resolved.fused_kernels & (LIGER_PATCHES.get(family, frozenset()) | {"cross-entropy"})
    norm = norm_kind(framework, resolved.versions)
    own = norm == "fused"
    fused = set(_COMPILED) if compiles else set(liger) | ({"norm"} if own else set())
    return {
        "fused": sorted(fused) if job.training.mode == "train" else [],
        "torch_norm": norm == "torch" and training.mode == "train",
        "final_norm_eager": compiles and framework.compiles_blocks and not own,
        "in_place": not (compiles or own),
        "fuses_query_norms": compiles or own,
        "repeats_keys": framework.repeats_keys or resolved.versions.repeats_keys,
        "compiles": compiles,
        "masks_attention": compiles and framework.trainer and job.model.attention == "sdpa",
        "masks_per_block": resolved.masks_blocks_apart,
        "own_loss": not framework.trainer,
        "chunks_at_once": framework.chunked_loss == "at-once",
        "compiles_loss": resolved.compiles_loss,
        "casts_logits": framework.casts_logits or resolved.versions.holds_predictions,
        "keeps_outputs": resolved.keeps_outputs,
        "keeps_between_steps": resolved.keeps_between_steps and not resolved.versions.runs_longest_first,
        "fp32_sums": resolved.versions.adds_head_gradient_in_fp32,
        "autocast": framework.trainer or resolved.widths.autocast,
        "root_unit": not resolved.units_around_blocks,
        "last_block_stays": resolved.last_block_stays,
        "checkpoints_parts": resolved.checkpoints_parts,
        "accumulates_unsharded": framework.accumulates_unsharded,
        "casts_norm_first": not resolved.versions.scales_norms_in_fp32,
        "expands_keys": resolved.versions.expands_keys,
        "stable_embedding": resolved.versions.normalizes_embedding,
        "recomputes_whole_blocks": resolved.versions.recomputes_whole_blocks,
        "experts": _own_experts(resolved, family),
    }


def _own_experts(job: ResolvedJob, family: str) -> str:
    """Return the form of the framework's own mixture of experts; empty: it has transformers', or it is not known."""
    if family not in job.framework.own_expert_families:
        return ""
    return job.framework.own_experts or job.versions.titan_experts
