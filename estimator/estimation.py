"""Makes an estimate: a job in, a Budget out, by the requested method."""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .budget import Budget
from .common.allocator_variables import VARIABLES, allocator_settings
from .common.errors import CannotTellError, InputError, VramtopError
from .common.records import replace
from .common.reserved_memory import estimates_only_figures, how_reserved_memory_is_found
from .formula.assumptions import card_warnings
from .formula.host_memory import host_need
from .formula.other_models import HeldModel
from .formula.unstated.unstated_settings import UnstatedSettings, find_unstated, with_unstated_settings
from .job.gpu_catalogue import Gpu, find_gpu
from .job.job import REHEARSED, Job
from .job.job_file.changes import check_job
from .job.resolved_job import resolve_job
from .job.rules.frameworks import FRAMEWORKS
from .model.architecture import Architecture
from .model.checkpoint import job_of_model, model_warnings, settled_by_model
from .model.count_parameters import count_parameters
from .model.find_config import ResolvedModel, resolve_model
from .model.inventory import Inventory
from .model.rank_share import model_trained_parameters
from .model.read_architecture import read_architecture
from .model.trained_parameters import near_names
from .uncertain_settings import widen_for_uncertainty
from .worker.memory.allocator_settings import AllocatorSettings

UNTRACED = "The step was not traced: "
"""Before the reason, in the assumptions of a budget whose step was to be traced."""
_FAILS = "the job's program fails with "
_TRACE_HINT = "--method traced runs the model itself"
_LOADED = time.time()
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
        job: the job.
        method: of a described job; of a program the kept rehearsal is taken, and nothing is run.
            ``formula``: from the config alone, in milliseconds; ``exact``: the formula on parameters counted on the
            built model, in a worker process; ``traced``: from two steps of the real model on fake tensors, in a worker
            process; ``auto``: the deepest that is available.
        gpu: the GPU; None: the job's target, else a Hopper GPU.
        memory_bytes: total memory of a GPU that is not in the catalogue, for replaying a traced step.
        python: interpreter of the worker process; None: searched for.
        environ: environment with the Hugging Face cache and the allocator's settings; None: this process's.
        progress: called with a few words before each step that takes longer.

    Raises:
        InputError: the job, its model or its sharding is invalid.
        CannotTellError: the method is unavailable here.
    """
    check_job(job)
    if gpu is None and job.target.gpu:
        gpu = find_gpu(job.target.gpu)
    if job.program is not None:
        from .trace.rehearsal import rehearse_job

        return rehearse_job(job, gpu=gpu, memory_bytes=memory_bytes, environ=environ, progress=progress).budget
    model = resolve_model(job.model, environ=environ)
    given, job = job, job_of_model(job, model, gpu)
    settled = tuple(settled_by_model(given, job, model, gpu)), tuple(model_warnings(given, job, model))
    arch = _architecture(job, model)
    if job.is_served and method == "traced":
        raise CannotTellError(
            f"vramtop cannot trace {job.engine_name}'s model code; leave out --method traced to use the formula"
        )
    if job.software.allocator_conf is not None:
        environ = {**(os.environ if environ is None else environ), VARIABLES[0]: job.software.allocator_conf}
    variable, conf = allocator_settings(os.environ if environ is None else environ) or (None, None)
    remarks: list[str] = []
    failing: str | None = None
    if method in ("auto", "traced") and not job.is_served:
        if progress:
            progress(f"tracing two training steps of {model.label}")
        from .trace.traced_budget import traced_budget, with_known_trained, with_reported_count
        from .trace.worker_process import beside_worker

        try:
            shape = None if isinstance(arch, CannotTellError) else arch
            unstated = functools.cache(lambda: _kept_unstated(_with_versions(job, python), model, arch, gpu, conf))
            with beside_worker(lambda: _try(unstated)):
                traced = traced_budget(
                    with_known_trained(job, shape),
                    model,
                    shape,
                    gpu=gpu,
                    memory_bytes=memory_bytes,
                    python=python,
                    environ=environ,
                )
            traced = with_reported_count(job, traced)
            traced = _with_other_models(replace(_with_host_need(traced, arch), job=job), arch, environ)
            traced = _with_facts(traced, gpu, settled)
            return widen_for_uncertainty(with_unstated_settings(traced, unstated()))
        except CannotTellError as error:
            if method == "traced":
                hint = "" if isinstance(arch, CannotTellError) else "; --method exact answers by formula"
                raise CannotTellError(f"{error.message}{hint}") from None
            if isinstance(arch, CannotTellError) and model.source != "code":
                raise CannotTellError(f"{arch.message} ({error.message})") from None
            remarks.append(f"{UNTRACED}{error.message}.")
            if error.message.startswith(_FAILS) and "ImportError" not in error.message:
                failing = f"A run may fail before it trains: when rehearsed, {error.message}."
    if conf and conf.strip():
        remarks.append(f"{variable} sets the allocator: {conf.strip()}.")
        remarks += [f"{note[0].upper()}{note[1:]}." for note in AllocatorSettings.from_conf(conf).notes]
    budget = _closed_form(job, model, arch, method=method, gpu=gpu, conf=conf, python=python, progress=progress)
    budget = _with_facts(_with_other_models(budget, arch, environ), gpu, settled)
    if not estimates_only_figures():
        budget = with_unstated_settings(budget, find_unstated(job, arch, gpu, conf))
    budget = replace(
        budget,
        assumptions=(*budget.assumptions, *remarks),
        warnings=budget.warnings if failing is None else (*budget.warnings, failing),
    )
    return widen_for_uncertainty(budget)


def why_untraced(budget: Budget) -> str | None:
    """Return why a budget whose step was to be traced was not; None: it was, or it was not to be."""
    remark = next((each for each in budget.assumptions if each.startswith(UNTRACED)), None)
    return None if remark is None else remark.removeprefix(UNTRACED).removesuffix(".")


def _with_facts(budget: Budget, gpu: Gpu | None, settled: tuple[tuple[str, ...], tuple[str, ...]]) -> Budget:
    """Return the budget with what defaults settled, on what that depends, and what its GPU cannot do."""
    assumptions, warnings = settled
    return replace(
        budget,
        assumptions=(*assumptions, *budget.assumptions),
        warnings=(*budget.warnings, *warnings, *(() if gpu is None else card_warnings(budget.job, gpu))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickEstimator:
    """Quick estimates of changed jobs of one model: figures without assumptions and warnings.

    Their ranges leave out what a job does not state: versions of libraries, and whether batches differ in length.
    """

    arch: Architecture
    inventory: Inventory
    gpu: Gpu | None
    job: Job
    """The job that is changed."""
    model: ResolvedModel
    held: "tuple[HeldModel, ...]"
    """The models beside its own."""

    def __call__(self, changed: Job) -> Budget:
        """Return the budget of a job of the same model; its attention may differ.

        Raises:
            InputError: the job or its sharding is invalid.
        """
        from .formula.closed_form import closed_form

        changed = job_of_model(changed, self.model, self.gpu)
        budget = closed_form(changed, self.arch, self.inventory, gpu=self.gpu, words=False)
        same = changed.other_models == self.job.other_models
        if held := self.held if same else _held_models(changed, self.arch, None):
            from .formula.other_models import with_other_models

            budget = with_other_models(budget, held)
        return widen_for_uncertainty(budget)

    @property
    def max_positions(self) -> int | None:
        """Maximum sequence length of the model; None: unknown."""
        return self.arch.max_positions


def quick_estimator(job: Job, *, gpu: Gpu | None = None) -> QuickEstimator:
    """Return an estimator of changed jobs, for searches: the model's shape is read once, the rest is arithmetic.

    Args:
        job: the job that is changed.
        gpu: the GPU; None: the job's target, else a Hopper GPU.

    Raises:
        InputError: there is no such model.
        CannotTellError: the formula cannot read the model's shape.
    """
    if job.program is not None:
        raise CannotTellError(f"{job.label} {REHEARSED}")
    if gpu is None and job.target.gpu:
        gpu = find_gpu(job.target.gpu)
    model = resolve_model(job.model)
    job = job_of_model(job, model, gpu)
    arch = _architecture(job, model)
    if isinstance(arch, CannotTellError):
        raise arch
    held = _held_models(job, arch, None)
    return QuickEstimator(arch=arch, inventory=count_parameters(arch), gpu=gpu, job=job, model=model, held=held)


def check_trainable(job: Job) -> None:
    """Check that every pattern of ``training.trainable`` matches a parameter, if the model's names are known.

    Raises:
        InputError: one matches none; names that resemble it are in the message.
    """
    if job.training.trainable is None:
        return
    arch = _architecture(job, resolve_model(job.model))
    if isinstance(arch, CannotTellError) or arch.approximate:
        return
    inventory = count_parameters(arch)
    trained = model_trained_parameters(resolve_job(job), inventory)
    for pattern in trained.unmatched if trained else ():
        near = ", ".join(near_names(inventory, pattern))
        raise InputError(f"training.trainable: no parameter of this model matches {pattern!r}; similar: {near}")


def _with_other_models(
    budget: Budget, arch: Architecture | CannotTellError, environ: Mapping[str, str] | None
) -> Budget:
    """Return the budget with the models that its job holds beside the trained one."""
    held = _held_models(budget.job, arch, environ)
    if not held:
        return budget
    from .formula.other_models import with_other_models

    return with_other_models(budget, held)


def _held_models(
    job: Job, arch: Architecture | CannotTellError, environ: Mapping[str, str] | None
) -> "tuple[HeldModel, ...]":
    if not job.other_models:
        return ()
    from .formula.other_models import find_held_models

    return find_held_models(job, arch, environ)


def _kept_unstated(
    job: Job, model: ResolvedModel, arch: Architecture | CannotTellError, gpu: Gpu | None, conf: str | None
) -> UnstatedSettings:
    """Return what the job leaves open; a trace that is kept need not wait for the closed form."""
    from .trace.answer_cache import kept_result

    key = [job, dict(model.config), gpu, conf, how_reserved_memory_is_found()]
    code = _closed_form_files(), _LOADED
    return kept_result("left-open", key, lambda: find_unstated(job, arch, gpu, conf), UnstatedSettings, code=code)


def _with_versions(job: Job, python: str | None) -> Job:
    """Return the job with the versions of the user's own Python, which rehearses it: named, or of an active one."""
    from .common.library_versions import find_interpreters, package_folders, versions_in

    if python is None and not any(os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")):
        return job
    found = versions_in(package_folders(find_interpreters(python, os.environ)[0]))
    if not {"torch", "transformers"} <= found.keys():  # another one rehearses it
        return job
    open_ones = [name for name in found if getattr(job.software, name, "") is None]
    return replace(job, software=replace(job.software, **{name: found[name] for name in open_ones}))


def _closed_form_files() -> Iterator[Path]:
    """Yield the files on which the closed form depends, their tables among them: this room's own, and other rooms'."""
    here = Path(__file__).parent
    yield from here.glob("*.py")
    for room in ("common", "formula", "job", "model", "worker/memory"):
        for pattern in ("*.py", "*.toml"):
            yield from (here / room).rglob(pattern)


def _try(work: Callable[[], object]) -> None:
    """Do it ahead; an error is raised where the result is needed."""
    with contextlib.suppress(VramtopError):
        work()


def _with_host_need(budget: Budget, arch: Architecture | CannotTellError) -> Budget:
    """Return a traced budget with what the model's shape implies beside the step: host memory, and a checkpoint."""
    if isinstance(arch, CannotTellError):
        return budget
    try:
        inventory = count_parameters(arch)
        if budget.job.saving is not None or budget.job.training.evaluation_batch is not None:
            from .formula.other_models import with_phases_between_steps

            budget = with_phases_between_steps(budget, arch, inventory)
        return replace(budget, host=host_need(budget.job, arch, inventory))
    except InputError:  # the built model has parts that the shape does not show
        return budget


def _closed_form(
    job: Job,
    model: ResolvedModel,
    arch: Architecture | CannotTellError,
    *,
    method: MethodChoice,
    gpu: Gpu | None,
    conf: str | None,
    python: str | None,
    progress: Callable[[str], None] | None,
) -> Budget:
    """Return the closed form, on parameters counted on the built model if the method asks for it."""
    if method != "formula":
        from .trace.exact_parameter_count import exact_inventory

        if progress:
            progress(f"counting the parameters of {model.label} on the built model")
        try:
            lora = None if FRAMEWORKS[job.training.framework].own_adapters else job.lora  # the worker's are peft's
            places = job.training.trainable is not None
            counted = exact_inventory(model, job.model.task, lora=lora, places=places, python=python)
            shape = _architecture_of_built(job, model, arch, counted)
            from .formula.closed_form import closed_form  # a trace needs none of it

            return closed_form(job, shape, counted, method="exact", gpu=gpu, conf=conf)
        except CannotTellError:
            if method == "exact" or model.source == "code":
                raise
    if isinstance(arch, CannotTellError):
        raise arch
    from .formula.closed_form import closed_form

    return closed_form(job, arch, count_parameters(arch), gpu=gpu, conf=conf)


def _architecture(job: Job, model: ResolvedModel) -> Architecture | CannotTellError:
    """Return the model's shape, or the error with the reason why the formula cannot read it."""
    if model.source == "code":
        return CannotTellError(
            f"{model.label} is Python code, which the formula cannot read; use --method traced or --method exact"
        )
    try:
        return read_architecture(model.config, job.model.task, where=model.where)
    except CannotTellError as error:
        trusted = job.model.trust_remote_code or not model.config.get("auto_map")
        return CannotTellError(f"{error.message}; {'' if trusted else '--trust-remote-code and '}{_TRACE_HINT}")


def _architecture_of_built(
    job: Job, model: ResolvedModel, arch: Architecture | CannotTellError, counted: Inventory
) -> Architecture:
    """Return the shape, for activations, of a model whose parameters were counted.

    Raises:
        CannotTellError: there is none; the message states the count.
    """
    if isinstance(arch, Architecture):
        return arch
    reason = arch.message
    if model.source == "code":
        if counted.config and counted.family:
            try:
                return read_architecture(counted.config, job.model.task, where=model.where)
            except CannotTellError as error:
                reason = f"{error.message}; {_TRACE_HINT}"
        else:
            reason = f"it has no Hugging Face config from which to compute its activations; {_TRACE_HINT}"
    raise CannotTellError(f"{model.label}: {counted.parameters:,} parameters were counted, but {reason}")
