"""Size of a checkpoint on disk."""

from ..budget import Budget
from ..job import resolve_job


def checkpoint_bytes(budget: Budget) -> int:
    """Return the bytes of one checkpoint of all ranks together: weights and optimizer states; 0 for inference.

    transformers' Trainer writes the weights in their own dtype (with LoRA the adapters alone) and the optimizer states
    as they are, DeepSpeed's fp32 copy of the weights among them. Adafactor's factored states are next to nothing.
    """
    job, trained = resolve_job(budget.job), budget.model.trainable_parameters
    if not job.trains:
        return 0
    optimizer, widths = job.optimizer, job.widths
    saved = trained * widths.adapter if job.lora else budget.model.parameters * widths.weight
    matrices = min(trained, budget.matrix_parameters or 0)
    states = optimizer.states_of(block_matrix=True) * matrices
    states += optimizer.states_of(block_matrix=False) * (trained - matrices)
    width = 1 if optimizer.eight_bit else widths.adapter if job.lora else widths.state
    master = 0 if job.lora else trained * widths.master
    return saved + (0 if optimizer.factored else states * width) + master
