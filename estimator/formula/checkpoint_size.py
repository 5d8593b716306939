"""Size of a checkpoint on disk."""

from ..budget import Budget
from ..job.resolved_job import resolve_job


def checkpoint_bytes(budget: Budget) -> int:
    """Return the bytes of one checkpoint of all ranks together: weights and optimizer states; 0 for inference.

    transformers' Trainer writes the weights in their own dtype (with LoRA the adapters alone) and the optimizer states
    as they are, DeepSpeed's fp32 copy of the weights among them.
    """
    job, trained = resolve_job(budget.job), budget.model.trainable_parameters
    if not job.trains:
        return 0
    widths = job.widths
    saved = trained * widths.adapter if job.lora else budget.model.parameters * widths.weight
    return saved + (budget.saved_state_bytes or 0)
