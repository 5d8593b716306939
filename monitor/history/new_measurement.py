"""Makes the measurement of a run: its job without names, its card, its machine and its versions."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.untrusted_files import read_file
from vramtop.estimator.common.version import version_number
from vramtop.estimator.job.job import Job
from vramtop.estimator.learning.kept_job import allocator_words, kept_job, release_number
from vramtop.estimator.learning.measurement import Measurement, Observed, Predicted, RunState, digest
from vramtop.estimator.model.find_config import resolve_model

_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
"""machine-id(5); it must not leave the machine as it is, so only a digest of it is kept."""
_LIBRARIES = ("torch", "cuda", "transformers", "bitsandbytes", "peft", "litgpt", "torchtitan", "trl")


def new_measurement(
    job: Job,
    budgets: Sequence[Budget],
    observed: Observed,
    *,
    run: str,
    state: RunState,
    time: float,
    card: str | None = None,
    card_bytes: int | None = None,
    driver: str | None = None,
    versions: Mapping[str, str] | None = None,
    command: str | None = None,
    allocator: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Measurement:
    """Return the measurement of one run, without paths, names or secrets.

    Args:
        job: the job, as it was estimated.
        budgets: its budgets, one per method; of corrected ones the uncorrected figures are kept.
        observed: what was seen.
        run: what identifies the run, such as its processes; a digest of it is kept.
        state: what the figures are the peaks of.
        time: Unix seconds at which they were seen.
        card: the GPU's name, as NVML gives it.
        card_bytes: its memory.
        driver: version of the driver.
        versions: versions of libraries in the run, which count more than those that the job states.
        command: the command line, of which a digest is kept.
        allocator: the allocator's settings.
        environ: the run's environment, with the Hugging Face cache; None: this process's.
    """
    try:
        config = resolve_model(job.model, environ=environ).config
    except VramtopError:  # the model's folder is gone
        config = {}
    kept = kept_job(job, config, parameters=budgets[0].model.parameters if budgets else None)
    machine = machine_digest()
    stated = {name: value for name in _LIBRARIES if (value := getattr(job.software, name, None))}
    return Measurement(
        run=digest(machine, run),
        job=kept.job,
        model=kept.model,
        shape=kept.shape,
        settings=kept.settings,
        predicted=tuple(Predicted.of(budget, vramtop_version()) for budget in budgets),
        observed=observed,
        state=state,
        card=card,
        card_bytes=card_bytes,
        driver=driver,
        machine=machine,
        versions=_numbers({**stated, **(versions or {})}),
        command=digest(command) if command else None,
        allocator=allocator_words(allocator),
        time=time,
    )


def _numbers(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the numbers of versions, of libraries that memory depends on."""
    numbers = ((name, release_number(versions[name])) for name in _LIBRARIES if name in versions)
    return {name: number for name, number in numbers if number}


@functools.cache
def machine_digest() -> str:
    """Return a digest that identifies this machine; empty: it has no id."""
    for path in _MACHINE_IDS:
        try:
            found = read_file(path, 1024).strip()
        except OSError:
            continue
        if found:
            return digest("vramtop history", found.decode("ascii", "replace"))
    return ""


def vramtop_version() -> str:
    """Return vramtop's version; empty: it runs without being installed."""
    return version_number() or ""
