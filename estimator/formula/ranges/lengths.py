"""Bytes by which memory is less if the longest sample does not meet what the micro-batches before it have left."""

from ...budget import Components
from ...job import ResolvedJob


def shorter_batches_doubt(job: ResolvedJob, parts: Components) -> int:
    """Return how much less memory a peak may take whose parts belong to micro-batches of different lengths.

    LitGPT's scripts before 0.2 take the longest sample in the first micro-batch of all (``get_longest_seq_length`` in
    finetune/lora.py and its like), when neither gradients had accumulated nor optimizer states existed. How long the
    later ones are depends on the data: at least what is accumulated is needed, or the longest sample without it.

    Args:
        job: the job.
        parts: of the peak, which has both.
    """
    if not job.versions.runs_longest_first or job.training.gradient_accumulation == 1 or not job.trains:
        return 0
    return min(parts.gradients + parts.optimizer, parts.activations + parts.logits + parts.temporary)
