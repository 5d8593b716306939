"""A job judged on the GPUs of this machine or of one that is described, and its report."""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from vramtop.estimator.budget import Budget
from vramtop.estimator.common import ExitCode
from vramtop.estimator.job import Gpu
from vramtop.monitor.board.fit import (
    DeviceCapacity,
    FitResult,
    Verdict,
    check_fit,
    count_devices,
    with_host_memory,
)
from vramtop.monitor.host import RANKS_OF_DESCRIBED_HOST, HostRam, available_host_memory

from ...draw import detect_output
from ...job import LoadedJob, load_changed
from ...reports import assumed_lines, budget_lines, closing_lines, fit_lines
from ..json_text import json_text
from ..measured_runs import correction, estimate_job
from ..option_values import described_host
from ..progress import Progress
from .advice import Advice, Machine, advice_lines, advise, suggestions_json
from .machine_gpus import gpus_here

if TYPE_CHECKING:
    from ..json_types import FitJson

EXIT_CODES: dict[Verdict, ExitCode] = {
    "fits": ExitCode.DONE,
    "does_not_fit": ExitCode.NO,
    "unknown": ExitCode.CANNOT_TELL,
    "tight": ExitCode.TIGHT,
}
Judge = Callable[[Budget], FitResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCheck:
    """A job with its budget, and the GPUs on which it is judged."""

    loaded: LoadedJob
    budget: Budget
    judge: Judge
    devices: tuple[DeviceCapacity, ...]
    machine: Machine
    """What the search for changes with which the job fits needs to know of the GPUs."""
    here: bool = True
    """The GPUs are those of this machine."""


def check_here(options: argparse.Namespace, loaded: LoadedJob) -> FitCheck:
    """Estimate a job for the GPUs of this machine, and read what they have available.

    Raises:
        NoGpusError: there are none.
        InputError: ``--gpu`` or CUDA_VISIBLE_DEVICES names no GPU here, or the job is invalid.
        CannotTellError: no estimate can be made.
    """
    found = gpus_here(options.gpu)
    gpu, memory_bytes = gpu_and_memory(found.devices)
    return FitCheck(
        loaded=replace(loaded, notes=(*loaded.notes, *found.notes)),
        budget=estimate_job(options, loaded.job, gpu, memory_bytes),
        judge=judge_on(found.devices, options, here=True),
        devices=found.devices,
        machine=describe_machine(gpu, memory_bytes, found.devices),
    )


def describe_machine(gpu: Gpu | None, memory_bytes: int | None, devices: Sequence[DeviceCapacity]) -> Machine:
    """Return what estimates and the search for changes ask of these GPUs."""
    return Machine(gpu=gpu, memory_bytes=memory_bytes, gpus=count_devices(devices))


def gpu_and_memory(devices: Sequence[DeviceCapacity]) -> tuple[Gpu | None, int | None]:
    """Return the catalogue entry and the total bytes of the GPUs that are considered."""
    gpu = next((device.gpu_type for device in devices if device.name), None)
    return gpu, max((device.total_bytes for device in devices if device.total_bytes), default=None)


def report_fit(options: argparse.Namespace, check: FitCheck) -> int:
    """Print the verdict, what to change, and the budget; return the exit code."""
    budget, judge = check.budget, check.judge
    verdict = judge(budget)
    loaded = replace(check.loaded, job=budget.job, notes=(*check.loaded.notes, *_cuda_visible_devices_note(verdict)))
    with Progress(quiet=options.json) as progress:
        advice = advise(
            loaded.job,
            budget,
            lambda changed: judge(changed).verdict,
            replace(check.machine, python=options.python),
            method=options.method,
            keep_global_batch=options.keep_global_batch,
            progress=progress,
            correct=correction(options, loaded.job, check.machine.gpu, here=check.here),
            change=partial(load_changed, options, loaded) if loaded.is_typed else None,
        )
    if options.json:
        print(json_text(_to_json(verdict, budget, advice, loaded)))
    else:
        output = detect_output(ascii_only=options.ascii)
        verdict_line, *further = fit_lines(verdict, budget, output)
        assumed = assumed_lines(
            budget, output, stated=loaded.stated, versions=loaded.assumed_versions, flags=loaded.file is None
        )
        print("\n".join([verdict_line, *assumed, *further, *advice_lines(advice, loaded, output)]))
        print()
        scale = _scale_bytes([each.device for each in verdict.gpus], budget)
        print("\n".join(budget_lines(budget, output, scale_bytes=scale)))
        print("\n".join(closing_lines(budget, loaded.notes, output, verbose=options.verbose)))
    return EXIT_CODES[verdict.verdict]


def _cuda_visible_devices_note(verdict: FitResult) -> tuple[str, ...]:
    """Return how to name the chosen devices to CUDA if some GPU is in MIG mode."""
    names = ",".join(verdict.cuda_devices)
    clear = not any(gpu.device.mig for gpu in verdict.gpus) or os.environ.get("CUDA_VISIBLE_DEVICES") == names
    if clear or verdict.verdict not in ("fits", "tight"):
        return ()
    return (
        "CUDA gives a program only one MIG device and no GPU beside it: start this job with "
        f"CUDA_VISIBLE_DEVICES={names}.",
    )


def _to_json(verdict: FitResult, budget: Budget, advice: Advice, loaded: LoadedJob) -> "FitJson":
    return {
        "schema": 1,
        "budget": budget.to_json(),
        **verdict.to_json(),
        "sentence": verdict.sentence,
        "suggestions": suggestions_json(advice, loaded),
        "largest": advice.largest.to_json() if advice.largest else None,
        "cards": None,
        "notes": list(loaded.notes),
    }


def judge_on(devices: Sequence[DeviceCapacity], options: argparse.Namespace, *, here: bool) -> Judge:
    """Return a function that judges whether a budget fits these GPUs, and their host if its RAM is known.

    Args:
        devices: the GPUs.
        options: with ``--host-memory``.
        here: the GPUs are those of this machine.
    """
    host = _host(options, here=here)

    def judge(budget: Budget) -> FitResult:
        verdict = check_fit(budget, devices)
        if host is None:
            return verdict
        ranks = (
            min(len(budget.ranks), count_devices(devices)) if here else min(len(budget.ranks), RANKS_OF_DESCRIBED_HOST)
        )
        return with_host_memory(verdict, budget, host, ranks=max(1, ranks))

    return judge


def _host(options: argparse.Namespace, *, here: bool) -> HostRam | None:
    """Return the RAM of ``--host-memory``, otherwise of this machine if its GPUs are meant; None: unknown."""
    return described_host(options) or (available_host_memory() if here else None)


def _scale_bytes(devices: Sequence[DeviceCapacity], budget: Budget) -> int | None:
    """Return what the full width of the budget's bar stands for; None: the budget itself."""
    total = max((device.total_bytes or 0 for device in devices), default=0)
    return total if total > budget.peak.device_bytes else None
