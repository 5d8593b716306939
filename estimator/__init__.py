"""What a training job will take of GPU memory: jobs, models, budgets.

>>> from vramtop.estimator import Job, ModelSpec, Training, estimate
>>> budget = estimate(Job(model=ModelSpec(id="meta-llama/Llama-3.1-8B"), training=Training(precision="bf16")))
>>> budget.peak.device_bytes, budget.to_json(), print(budget)  # bytes; the JSON of the command line; a table
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .budget import Budget
    from .errors import CannotTellError, InputError, VramtopError
    from .job import Job, Lora, ModelSpec, Parallel, Target, Training
    from .jobfile import load_job
    from .methods import estimate

_HOMES = {
    "Budget": "budget",
    "CannotTellError": "errors",
    "InputError": "errors",
    "Job": "job",
    "Lora": "job",
    "ModelSpec": "job",
    "Parallel": "job",
    "Target": "job",
    "Training": "job",
    "VramtopError": "errors",
    "estimate": "methods",
    "load_job": "jobfile",
}
__all__ = [
    "Budget",
    "CannotTellError",
    "InputError",
    "Job",
    "Lora",
    "ModelSpec",
    "Parallel",
    "Target",
    "Training",
    "VramtopError",
    "estimate",
    "load_job",
]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are asked for: importing the package itself costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
