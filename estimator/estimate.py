"""One job in, one Budget out, by the method asked for."""

from collections.abc import Callable, Mapping
from typing import Literal

from .budget import Budget
from .job import Job

MethodChoice = Literal["auto", "formula", "exact", "traced"]


def estimate(
    job: Job,
    *,
    method: MethodChoice = "formula",
    python: str | None = None,
    environ: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Budget:
    """Predict the memory of a job.

    Args:
        job: what is to be trained.
        method: ``formula``: from the config alone, in milliseconds; ``exact``: on parameters counted on the built
            model, in a worker process; ``auto``: the deepest that can be had.
        python: the interpreter for the worker process; searched for when left out.
        environ: whose Hugging Face cache to look into; this process's own when left out.
        progress: told in a few words what is going on, for what takes longer.

    Raises:
        InputError: the job, its model or its sharding makes no sense.
        CannotTellError: the method is out of reach here.
    """
    raise NotImplementedError
