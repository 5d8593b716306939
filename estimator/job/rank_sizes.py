"""Sequences and tokens of one micro-batch on one rank, which a resolved job has as fields."""

from .job import Job
from .rules.version_rules import version_rules


def rank_sizes(job: Job) -> dict[str, int]:
    """Return the fields of a resolved job that depend on its micro-batch and sequence length."""
    training = job.training
    length = -(-training.sequence_length // job.parallel.context)
    sequences = training.micro_batch * training.sequences_per_example
    return {
        "sequences": sequences,
        "local_length": length,
        "local_tokens": sequences * length,
        "generated_sequences": _generated_sequences(job, sequences),
        "prompt_length": _prompt_length(job, length),
        "scored_tokens": sequences * _scored_tokens(job, length),
    }


def _scored_tokens(job: Job, length: int) -> int:
    """Return the tokens of a sequence whose logits are computed; of a prompt, the last one.

    ``generate`` sets ``logits_to_keep`` to 1 (transformers' generation/utils.py).
    """
    if job.training.mode == "inference" and job.model.task == "causal-lm" and not version_rules(job).scores_prompts:
        return 1
    return min(length, job.training.loss_length or length)


def _generated_sequences(job: Job, sequences: int) -> int:
    rollout = job.rollout
    if rollout is None or rollout.engine != "transformers" or job.training.mode != "train":
        return 0
    return sequences * rollout.micro_batches


def _prompt_length(job: Job, length: int) -> int:
    """Return the tokens of a prompt: what the scored completion leaves of a sequence, unless it is stated."""
    stated = job.rollout.prompt_length if job.rollout else None
    return min(length, stated or max(1, length - (job.training.loss_length or 0)))
