"""How large a checkpoint is on disk."""

from ..budget.budget import Budget
from ..job.dtype_widths import read_widths
from ..job.job import Optimizer

_STATES: dict[Optimizer, int] = {
    **dict.fromkeys(("adamw", "adamw-fused", "paged-adamw", "adamw-8bit", "paged-adamw-8bit"), 2),
    **dict.fromkeys(("lion", "muon", "sgd-momentum"), 1),
}
"""States per trained element; those that are not here keep next to nothing."""


def checkpoint_bytes(budget: Budget) -> int:
    """One checkpoint of all ranks together: what is trained, and the optimizer's states; 0 where nothing is trained.

    transformers' Trainer writes the weights in the type they have (the adapters alone, where there are any) and the
    optimizer's states as they are, DeepSpeed's fp32 copy of the weights among them.
    """
    job, facts, widths = budget.job, budget.model, read_widths(budget.job)
    if job.training.mode == "inference":
        return 0
    trained = facts.trainable_parameters
    saved = trained * widths.adapter if job.lora else facts.parameters * widths.weight
    width = 1 if job.training.optimizer.endswith("8bit") else widths.adapter if job.lora else widths.state
    states = trained * (_STATES.get(job.training.optimizer, 0) * width + (0 if job.lora else widths.master))
    return saved + states
