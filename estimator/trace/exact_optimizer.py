"""Optimizer states counted in steps of the job's own optimizer class, in a worker process."""

import os
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from ..budget import Budget
from ..common.errors import CannotTellError
from ..common.records import replace
from ..job.gpu_catalogue import Gpu
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, own_optimizer_code, resolve_job
from ..job.rules.optimizers.optimizer import Optimizer, PerShape
from ..model.architecture import Architecture, Inventory
from ..model.trained_parameters import adapter_groups
from .interpreters import choose_interpreter
from .worker_pool import cache_file, cached_request
from .worker_process import UnsupportedRequestError

_CACHE_VERSION = 1
_DTYPES = {4: "float32", 2: "bfloat16"}


class OptimizerAnswer(msgspec.Struct, frozen=True):
    """A worker's answer to the request ``optimizer``."""

    states: tuple[int | None, ...]
    step: tuple[int, ...]
    how: str
    distribution: str | None


class CountedOptimizer(msgspec.Struct, frozen=True):
    """Rules of an optimizer class, and how they were found."""

    rules: Optimizer
    assumption: str


def exact_budget(
    job: Job,
    arch: Architecture,
    counted: Inventory,
    *,
    gpu: Gpu | None,
    conf: str | None,
    python: str | None,
    progress: Callable[[str], None] | None,
) -> Budget:
    """Return the closed form on counted parameters, and on counted optimizer states if the job names a class.

    Args:
        job: the job.
        arch: the model's shape.
        counted: its parameters, counted on the built model.
        gpu: the GPU, for CUDA's own memory; None: a Hopper GPU.
        conf: the allocator's settings; None: those that the job's framework makes.
        python: the interpreter with the class; None: searched for.
        progress: called with a few words before what takes longer.

    Raises:
        InputError: the job is invalid, or ``python`` does not exist.
    """
    from ..formula.closed_form import closed_form  # a trace needs none of it

    if job.training.optimizer_class is not None and progress:
        progress(f"stepping {job.training.optimizer_class} on parameters of the model's shapes")
    try:
        optimizer = exact_optimizer(job, counted, python=python)
    except CannotTellError as error:
        budget = closed_form(job, arch, counted, method="exact", gpu=gpu, conf=conf)
        return replace(
            budget, warnings=(*budget.warnings, f"The optimizer's states were not counted: {error.message}.")
        )
    if optimizer is None:
        return closed_form(job, arch, counted, method="exact", gpu=gpu, conf=conf)
    budget = closed_form(job, arch, counted, method="exact", gpu=gpu, optimizer=optimizer.rules, conf=conf)
    return replace(budget, assumptions=(*budget.assumptions, optimizer.assumption))


def exact_optimizer(
    job: Job,
    inventory: Inventory,
    *,
    python: str | None = None,
    timeout: float = 300,
    environ: Mapping[str, str] | None = None,
    cache: Path | None = None,
) -> CountedOptimizer | None:
    """Return what the class that ``training.optimizer`` names takes; None if it names no class, or nothing is trained.

    Args:
        job: the job.
        inventory: the model's parameters.
        python: the interpreter (``--python``); None: the first that has torch and transformers.
        timeout: seconds.
        environ: environment with VIRTUAL_ENV and CONDA_PREFIX; None: this process's.
        cache: folder of cached answers; None: the user's cache folder.

    Raises:
        InputError: ``python`` does not exist.
        CannotTellError: no interpreter has the class, or it cannot be stepped there.
    """
    path = job.training.optimizer_class
    if path is None or job.training.mode != "train":
        return None
    resolved = resolve_job(job)
    tensors = _tensors(resolved, inventory)
    if not tensors:
        return None
    interpreter = choose_interpreter(python, os.environ if environ is None else environ)
    request: dict[str, Any] = {
        "op": "optimizer",
        "path": path,
        "options": dict(job.training.optimizer_options or {}),
        "tensors": [{"shape": list(shape), "dtype": _DTYPES[width]} for shape, width in tensors],
        "code": own_optimizer_code(job),
    }
    key = [_CACHE_VERSION, request, interpreter.torch, str(interpreter.path)]
    file = cache_file("optimizers", key, folder=cache)
    try:
        answer = cached_request(
            interpreter, request, OptimizerAnswer, file=file, version=_CACHE_VERSION, timeout=timeout
        )
    except UnsupportedRequestError as error:
        raise CannotTellError(error.message) from None
    return _counted(path, tensors, answer)


def _tensors(job: ResolvedJob, inventory: Inventory) -> list[tuple[tuple[int, ...], int]]:
    """Return the shapes of the parameters that may train, each with its bytes per element when it is stepped."""
    adapters = adapter_groups(inventory, job) if job.lora else ()
    found = [(group.shape, job.widths.state) for group in inventory.groups]
    found += [(group.shape, job.widths.adapter) for group in adapters]
    return list(dict.fromkeys(((prod(shape),) if job.steps_flat_buffers else shape, width) for shape, width in found))


def _counted(path: str, tensors: list[tuple[tuple[int, ...], int]], answer: OptimizerAnswer) -> CountedOptimizer:
    sizes: dict[tuple[tuple[int, ...], float], float] = {
        (shape, width): 2.0 * width * prod(shape) if states is None else float(states)
        for (shape, width), states in zip(tensors, answer.states, strict=True)
    }
    largest = max(prod(shape) for shape, _ in tensors)
    library = f" ({answer.distribution})" if answer.distribution else ""
    by = "on fake tensors of the model's shapes" if answer.how == "fake" else "on small tensors, scaled to the model's"
    vectors = "; vectors, which it does not update, are counted as AdamW's" if None in answer.states else ""
    return CountedOptimizer(
        rules=Optimizer(
            name=path,
            description=path,
            states=(PerShape(sizes=sizes),),
            step_tensors=max(answer.step) / (4 * largest),
        ),
        assumption=f"The states of {path}{library} were counted by running the class {by}{vectors}.",
    )
