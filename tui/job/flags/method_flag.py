"""A flag that names one of TRL's training methods, such as ``--dpo``."""

from collections.abc import Collection, Mapping
from typing import Any

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes


def with_method(job: Job, method: str, stated: Collection[str], changes: Mapping[str, Any]) -> tuple[Job, str]:
    """Return the job with what TRL's trainer of a method holds and computes, and a note on what that is.

    Args:
        job: the job otherwise.
        method: its name.
        stated: keys that were set, which stay; but TRL's trainers have losses of their own in place of Liger-Kernel's
            for all of the logits.
        changes: what the command line sets by job key.

    Raises:
        InputError: the job trains nothing.
    """
    if job.training.mode != "train":
        raise InputError(f"--{method} is a way to train, and this job generates text only; leave out one of the two")
    from vramtop.estimator.readers.trl.methods import read_method  # only where it is asked for

    kept = [key for key in stated if (key, changes.get(key)) != ("training.loss", "fused-linear")]
    found = [finding for finding in read_method(method, job) if finding.key not in kept]
    read = "; ".join(f"{finding.key} = {finding.value_text} ({finding.origin})" for finding in found)
    return with_changes(job, {finding.key: finding.value for finding in found}), f"--{method}: {read}."
