"""One job in, one Budget out, by the method asked for."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .budget.budget import Budget
from .budget.uncertainty import widen_for_uncertainty
from .common.errors import CannotTellError, InputError
from .formula.closed_form import closed_form
from .formula.host_memory import host_need
from .job.gpu_catalogue import Gpu, find_gpu
from .job.job import Job
from .model.architecture import Architecture
from .model.count_parameters import count_parameters
from .model.find_config import ResolvedModel, resolve_model
from .model.parameters import Inventory
from .model.read_architecture import read_architecture
from .trace.allocator_report import allocator_settings
from .trace.exact_inventory import exact_inventory
from .trace.traced_budget import traced_budget

_TRACE_IT = "--method traced runs the model itself"
MethodChoice = Literal["auto", "formula", "exact", "traced"]


def estimate(
    job: Job,
    *,
    method: MethodChoice = "formula",
    gpu: Gpu | None = None,
    memory_bytes: int | None = None,
    python: str | None = None,
    environ: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Budget:
    """Predict the memory of a job.

    Args:
        job: what is to be trained.
        method: ``formula``: from the config alone, in milliseconds; ``exact``: on parameters counted on the built
            model, in a worker process; ``traced``: from two steps of the real model on fake tensors, likewise;
            ``auto``: the deepest that can be had.
        gpu: the card; the job's target when left out, else a Hopper card.
        memory_bytes: the card's size, where it is no known card: a traced step is replayed in that much room.
        python: the interpreter for the worker process; searched for when left out.
        environ: whose Hugging Face cache to look into, and whose allocator settings count; this process's own when
            left out.
        progress: told in a few words what is going on, for what takes longer.

    Raises:
        InputError: the job, its model or its sharding makes no sense.
        CannotTellError: the method is out of reach here.
    """
    if gpu is None and job.target.gpu:
        gpu = find_gpu(job.target.gpu)
    model = resolve_model(job.model, environ=environ)
    arch = _shape(job, model)
    remarks: list[str] = []
    if job.served_by_vllm and method == "traced":
        raise CannotTellError("vLLM's own model code is not traced; method formula has rules for it")
    if method in ("auto", "traced") and not job.served_by_vllm:
        if progress:
            progress(f"tracing two training steps of {model.label}")
        try:
            shape = None if isinstance(arch, CannotTellError) else arch
            traced = traced_budget(
                job, model, shape, gpu=gpu, memory_bytes=memory_bytes, python=python, environ=environ
            )
            return widen_for_uncertainty(_with_host(traced, arch))
        except CannotTellError as error:
            if method == "traced":
                raise
            if isinstance(arch, CannotTellError) and model.source != "code":
                raise CannotTellError(f"{arch.message} ({error.message})") from None
            remarks.append(f"The step was not traced: {error.message}.")
    settings = allocator_settings(os.environ if environ is None else environ)
    if settings and settings[1].strip():
        remarks.append(f"The allocator has its usual settings: {settings[0]} is followed by traced steps only.")
    budget = widen_for_uncertainty(_closed(job, model, arch, method=method, gpu=gpu, python=python, progress=progress))
    return replace(budget, assumptions=(*budget.assumptions, *remarks)) if remarks else budget


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickEstimator:
    """A quick estimate of changed jobs of one model: the figures, without assumptions and warnings."""

    arch: Architecture
    inventory: Inventory
    gpu: Gpu | None

    def __call__(self, changed: Job) -> Budget:
        """The budget of a job of the same model; its attention may differ.

        Raises:
            InputError: as ``estimate`` does.
        """
        return widen_for_uncertainty(closed_form(changed, self.arch, self.inventory, gpu=self.gpu, words=False))

    @property
    def max_positions(self) -> int | None:
        """The longest sequence the model was made for; None where its config does not say."""
        return self.arch.max_positions


def quick_estimator(job: Job, *, gpu: Gpu | None = None, environ: Mapping[str, str] | None = None) -> QuickEstimator:
    """A quick estimate of changed jobs, for searches: the model's shape is read once, and the rest is arithmetic.

    Args:
        job: what is changed.
        gpu: the card; the job's target when left out, else a Hopper card.
        environ: whose Hugging Face cache to look into; this process's own when left out.

    Raises:
        InputError: there is no such model.
        CannotTellError: the formula cannot have its shape.
    """
    card = gpu or (find_gpu(job.target.gpu) if job.target.gpu else None)
    arch = _shape(job, resolve_model(job.model, environ=environ))
    if isinstance(arch, CannotTellError):
        raise arch
    return QuickEstimator(arch=arch, inventory=count_parameters(arch), gpu=card)


def _with_host(budget: Budget, arch: Architecture | CannotTellError) -> Budget:
    """With what it takes of the host, where the shape says that."""
    if isinstance(arch, CannotTellError):
        return budget
    try:
        return replace(budget, host=host_need(budget.job, arch, count_parameters(arch)))
    except InputError:  # the built model has what the shape does not show
        return budget


def _closed(
    job: Job,
    model: ResolvedModel,
    arch: Architecture | CannotTellError,
    *,
    method: MethodChoice,
    gpu: Gpu | None,
    python: str | None,
    progress: Callable[[str], None] | None,
) -> Budget:
    """The closed form, on parameters counted on the built model where that is wanted and can be had."""
    if method != "formula":
        if progress:
            progress(f"counting the parameters of {model.label} on the built model")
        try:
            lora = None if job.training.framework == "litgpt" else job.lora  # its adapters are not peft's
            counted = exact_inventory(model, job.model.task, lora=lora, python=python)
            return closed_form(job, _shape_of_built(job, model, arch, counted), counted, method="exact", gpu=gpu)
        except CannotTellError:
            if method == "exact" or model.source == "code":
                raise
    if isinstance(arch, CannotTellError):
        raise arch
    return closed_form(job, arch, count_parameters(arch), gpu=gpu)


def _shape(job: Job, model: ResolvedModel) -> Architecture | CannotTellError:
    """The model's shape, or why the formula cannot have one."""
    if model.source == "code":
        return CannotTellError(
            f"{model.label} is Python code, which the formula cannot read; use --method traced or --method exact"
        )
    try:
        return read_architecture(model.config, job.model.task, where=model.where)
    except CannotTellError as error:
        trusted = job.model.trust_remote_code or not model.config.get("auto_map")
        return CannotTellError(f"{error.message}; {'' if trusted else '--trust-remote-code and '}{_TRACE_IT}")


def _shape_of_built(
    job: Job, model: ResolvedModel, arch: Architecture | CannotTellError, counted: Inventory
) -> Architecture:
    """The shape that activations are told from, of a model whose parameters were counted.

    Raises:
        CannotTellError: there is none; the count is said.
    """
    if isinstance(arch, Architecture):
        return arch
    reason = arch.message
    if model.source == "code":
        if counted.config and counted.family:
            try:
                return read_architecture(counted.config, job.model.task, where=model.where)
            except CannotTellError as error:
                reason = f"{error.message}; {_TRACE_IT}"
        else:
            reason = f"it has no Hugging Face config to tell its activations from; {_TRACE_IT}"
    raise CannotTellError(f"{model.label}: {counted.parameters:,} parameters were counted, but {reason}")
