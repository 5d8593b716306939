"""Tensor-parallel plans as data: a style for each pattern of module names, and the parameters that it splits."""

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from ..job.job import Job

WHOLE: Final = frozenset(
    {
        *("replicate", "replicated_with_grad_allreduce", "ep_router", "sequence_parallel", "all_reduce", "gather"),
        *("moe_identity_expert", "mla_kv_a_proj", "local", "local_params", "moe_tp_experts"),
    }
)
"""Styles that split no parameter of the module they name; the plan names experts' parameters by themselves."""
Plan = tuple[tuple[str, str], ...]
"""Patterns of module or parameter names, ``*`` for a layer's number, each with a style of transformers' plans."""


def plan_of_job(job: Job) -> Plan | None:
    """Return the job's own tensor-parallel plan; None: it has none, or one in code, which only a traced step runs."""
    plan = job.parallel.tensor_plan
    return tuple(plan.items()) if isinstance(plan, dict) and job.parallel.tensor > 1 else None


def has_unread_plan(job: Job) -> bool:
    """Return True if the job names a plan that only running its code would tell."""
    return job.parallel.tensor > 1 and isinstance(job.parallel.tensor_plan, str)


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
