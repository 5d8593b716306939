"""Bytes that a prediction has at once, and a run one after the other: gradients, and the longest sequences."""

from ...budget import Components
from ...job import ResolvedJob


def longest_first_doubt(job: ResolvedJob, peak: Components) -> int:
    """Return how much less memory a run takes whose first micro-batch alone has the stated length.

    LitGPT's scripts before 0.2 ran the longest sample in the first micro-batch of a run (``finetune/lora.py``), when no
    gradients had accumulated; later ones had gradients, and shorter sequences of unknown lengths.

    Args:
        job: the job.
        peak: its highest moment.
    """
    if not (job.framework.keeps_fp32_logits and job.versions.runs_longest_first):
        return 0
    if job.training.gradient_accumulation == 1:
        return 0
    return min(peak.gradients, peak.activations + peak.logits)
