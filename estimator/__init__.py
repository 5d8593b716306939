"""Estimates the GPU memory of a training job: a job in, a budget out.

Describe a job and estimate it; without torch this takes milliseconds:

>>> from vramtop.estimator import Budget, Job, ModelSpec, Training, estimate
>>> job = Job(
...     model=ModelSpec(id="meta-llama/Llama-3.1-8B"),
...     training=Training(precision="bf16", sequence_length=4096, optimizer="adamw-fused"),
... )
>>> budget = estimate(job)
>>> budget.method, budget.model.parameters
('formula', 8030261248)
>>> budget.peak.low_bytes <= budget.peak.device_bytes <= budget.peak.high_bytes  # as NVML counts
True
>>> budget.peak.phase
'backward'

``print(budget)`` shows a table by component and phase. The rest is plain data:

>>> [phase.name for phase in budget.phases]
['loading', 'forward', 'backward', 'optimizer step']
>>> Budget.from_json(budget.to_json()) == budget  # the JSON of ``vramtop estimate --json``
True

``estimate(job, method="traced")`` runs two training steps of the real model on fake tensors, in a process of a Python
that has torch and transformers (``python=``); its budget also has ``largest``, the largest tensors at the peak by
module, and ``timeline``, memory by component over the step. ``load_job`` reads a job file. An invalid
job raises ``InputError``, an answer that is unavailable here ``CannotTellError``; both are a ``VramtopError``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .budget import Budget as Budget
    from .common.errors import (
        CannotTellError as CannotTellError,
        InputError as InputError,
        VramtopError as VramtopError,
    )
    from .estimation import estimate as estimate
    from .job.job import Job as Job
    from .job.job_file.load_and_save import load_job as load_job
    from .job.settings import (
        Lora as Lora,
        ModelSpec as ModelSpec,
        Parallel as Parallel,
        Target as Target,
        Training as Training,
    )

_HOMES = {
    "Budget": ".budget",
    "CannotTellError": ".common.errors",
    "InputError": ".common.errors",
    "Job": ".job.job",
    "Lora": ".job.settings",
    "ModelSpec": ".job.settings",
    "Parallel": ".job.settings",
    "Target": ".job.settings",
    "Training": ".job.settings",
    "VramtopError": ".common.errors",
    "estimate": ".estimation",
    "load_job": ".job.job_file.load_and_save",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    """Return the public names, for ``help`` and completion."""
    return __all__
