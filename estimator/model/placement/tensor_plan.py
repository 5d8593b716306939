"""Tensor-parallel plans as data: a style for each pattern of module names, and the parameters that it splits."""

from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from ...job import Job
from .plan_in_file import read_plan_file
from .plan_styles import WHOLE

Plan = tuple[tuple[str, str], ...]
"""Patterns of module or parameter names, ``*`` for a layer's number, each with a style of transformers' plans."""


def plan_of_job(job: Job) -> Plan | None:
    """Return the job's own tensor-parallel plan; None: it has none, or one that cannot be read as data."""
    plan = job.parallel.tensor_plan
    if plan is None or job.parallel.tensor == 1:
        return None
    return _plan_in_file(plan, job.model.code_folder or "") if isinstance(plan, str) else tuple(plan.items())


def has_unread_plan(job: Job) -> bool:
    """Return True if the job names a plan that only running its code would tell."""
    return job.parallel.tensor > 1 and job.parallel.tensor_plan is not None and plan_of_job(job) is None


@lru_cache(maxsize=64)
def _plan_in_file(path: str, folder: str) -> Plan | None:
    found = read_plan_file(path, Path(folder))
    return None if found is None else tuple(found.items())


@lru_cache(maxsize=4096)
def splits(plan: Plan, parameter: str) -> bool:
    """Return True if a plan splits a parameter; rowwise styles leave a bias whole.

    Args:
        plan: the plan.
        parameter: its name, ``*`` for a layer's number.
    """
    module, _, leaf = parameter.rpartition(".")
    for pattern, style in plan:
        if style not in WHOLE and _matches(pattern, parameter):
            return True
        if style not in WHOLE and _matches(pattern, module):
            return not (leaf == "bias" and style.startswith("rowwise"))
    return False


@lru_cache(maxsize=4096)
def _matches(pattern: str, name: str) -> bool:
    """Return True if a pattern names a module: part by part, as torch's ``parallelize_module`` compares them."""
    wanted, given = pattern.split("."), name.split(".")
    return len(wanted) == len(given) and all(
        each.isdigit() or each == "*" if part == "*" else fnmatchcase(part, each)
        for each, part in zip(wanted, given, strict=True)
    )
