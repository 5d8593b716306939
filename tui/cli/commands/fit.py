"""``vramtop fit JOB``: check whether a job fits on this machine now, or on a machine that is described."""

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vramtop.estimator.budget import Budget
from vramtop.estimator.common import CannotTellError, InputError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job import Gpu, Job
from vramtop.estimator.trace import keep_idle_workers
from vramtop.monitor.board.fit import (
    DeviceCapacity,
    FitResult,
    Verdict,
    check_fit,
    count_devices,
    device_capacities,
    with_host_memory,
)
from vramtop.monitor.host import RANKS_OF_DESCRIBED_HOST, HostRam, available_host_memory
from vramtop.monitor.snapshot import DeviceIndex, Snapshot, gpu_list
from vramtop.monitor.sources.nvml import NvmlSource
from vramtop.monitor.storage import Reservations

from ...draw import detect_output
from ...job import LoadedJob, load_from_options
from ...reports import budget_lines, closing_lines, fit_lines
from ..fitting import (
    Advice,
    Machine,
    WaitRequest,
    advice_json,
    advice_lines,
    advise,
    exec_program,
    program_to_start,
    report_without_gpus,
    wait_until_it_fits,
)
from ..json_text import json_text
from ..option_values import described_devices, described_gpu, described_host, estimate_method, gpu_indices
from ..progress import Progress

if TYPE_CHECKING:
    from vramtop.monitor.attach import Attachment

EXIT_CODES: dict[Verdict, int] = {"fits": 0, "does_not_fit": 1, "unknown": 3, "tight": 4}
DeviceSelection = Sequence[int | str] | None
"""GPUs by index and MIG devices by uuid; None: all."""
Judge = Callable[[Budget], FitResult]


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the verdict; exit code 0: fits, 1: does not fit, 3: cannot tell, 4: tight."""
    program = program_to_start(options, launch)
    if options.wait:
        return _wait(options, launch, program)
    unused = [flag for flag in ("timeout", "exec") if getattr(options, flag) is not None]
    if unused:
        raise InputError(f"--{unused[0]} needs --wait")
    loaded = load_from_options(options, launch)
    job = loaded.job
    if estimate_method(options) != "formula":
        keep_idle_workers()  # suggestions are traced after the job
    gpu, memory_bytes = described_gpu(options, job)
    here = not memory_bytes
    if memory_bytes:
        devices = described_devices(gpu, memory_bytes, options.gpus or job.parallel.world_size)
    else:
        try:
            with _open_source() as source:
                snapshot = _read_gpus(source)
        except CannotTellError as error:
            if options.gpu is not None:
                raise
            return report_without_gpus(options, loaded, _estimate(options, job, None, None), error.message)
        selection, selection_notes = _select_devices(options.gpu, snapshot)
        committed, job_notes = _committed_bytes(snapshot, selection)
        devices = device_capacities(snapshot, committed, selection)
        loaded = replace(loaded, notes=(*loaded.notes, *selection_notes, *job_notes))
        gpu, memory_bytes = _gpu_and_memory(devices)
    budget = _estimate(options, job, gpu, memory_bytes)
    judge = _judge(devices, _host(options, here=here), here=here)
    return _report(
        options, loaded, budget, judge, Machine(gpu=gpu, memory_bytes=memory_bytes, gpus=count_devices(devices))
    )


def _wait(options: argparse.Namespace, launch: Sequence[str] | None, program: Sequence[str]) -> int:
    """Wait until the job fits, then start the program or print the verdict."""
    loaded = load_from_options(options, launch)
    job = loaded.job
    if described_gpu(options, job)[1]:
        raise InputError("--wait waits for GPUs of this machine; leave out --gpu-type, --gpu-memory and target.gpu")
    with _open_source() as source:
        snapshot = _read_gpus(source)
        selection, notes = _select_devices(options.gpu, snapshot)
        loaded = replace(loaded, notes=(*loaded.notes, *notes))
        gpu, memory_bytes = _gpu_and_memory(device_capacities(snapshot, {}, selection))
        request = WaitRequest(
            budget=_estimate(options, job, gpu, memory_bytes),
            read=lambda: _read_gpus(source),
            devices=lambda now: device_capacities(now, _committed_bytes(now, selection)[0], selection),
            interval=options.interval,
            timeout=options.timeout,
            program=program,
            judge=lambda budget, devices: _judge(devices, _host(options, here=True), here=True)(budget),
        )
        verdict = wait_until_it_fits(request)
    if program and verdict.verdict == "fits":
        exec_program(program, verdict)
    devices = [each.device for each in verdict.gpus]
    judge = _judge(devices, _host(options, here=True), here=True)
    machine = Machine(gpu=gpu, memory_bytes=memory_bytes, gpus=count_devices(devices))
    return _report(options, loaded, request.budget, judge, machine)


def _estimate(options: argparse.Namespace, job: Job, gpu: Gpu | None, memory_bytes: int | None) -> Budget:
    with Progress(quiet=options.json) as progress:
        return estimate(
            job,
            method=estimate_method(options),
            gpu=gpu,
            memory_bytes=memory_bytes,
            python=options.python,
            progress=progress,
        )


def _gpu_and_memory(devices: Sequence[DeviceCapacity]) -> tuple[Gpu | None, int | None]:
    """Return the catalogue entry and the total bytes of the GPUs that are considered."""
    gpu = next((device.gpu_type for device in devices if device.name), None)
    return gpu, max((device.total_bytes for device in devices if device.total_bytes), default=None)


def _report(options: argparse.Namespace, loaded: LoadedJob, budget: Budget, judge: Judge, machine: Machine) -> int:
    """Print the verdict, what to change, and the budget; return the exit code."""
    verdict = judge(budget)
    loaded = replace(loaded, notes=(*loaded.notes, *_cuda_visible_devices_note(verdict)))
    with Progress(quiet=options.json) as progress:
        advice = advise(
            loaded.job,
            budget,
            lambda changed: judge(changed).verdict,
            replace(machine, python=options.python),
            method=estimate_method(options),
            keep_global_batch=options.keep_global_batch,
            progress=progress,
        )
    if options.json:
        print(json_text(_to_json(verdict, budget, advice, loaded)))
    else:
        output = detect_output(ascii_only=options.ascii)
        print("\n".join([*fit_lines(verdict, budget, output), *advice_lines(advice, loaded, output)]))
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


def _to_json(verdict: FitResult, budget: Budget, advice: Advice, loaded: LoadedJob) -> dict[str, object]:
    found = {"budget": budget.to_json(), **verdict.to_json(), "sentence": verdict.sentence}
    return found | advice_json(advice, loaded) | ({"notes": list(loaded.notes)} if loaded.notes else {})


def _judge(devices: Sequence[DeviceCapacity], host: HostRam | None, *, here: bool) -> Judge:
    """Return a function that judges whether a budget fits these GPUs, and their host if its RAM is known."""

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


@contextlib.contextmanager
def _open_source() -> Iterator[NvmlSource]:
    source = NvmlSource()
    try:
        source.open()
    except CannotTellError as error:
        advice = "describe the machine with --gpu-type or --gpu-memory"
        raise CannotTellError(f"{error.message.rstrip('.')}; {advice}") from None
    try:
        yield source
    finally:
        source.close()


def _read_gpus(source: NvmlSource) -> Snapshot:
    snapshot = source.read()
    if not snapshot.gpus:
        raise CannotTellError("NVML sees no GPU here; describe the machine with --gpu-type or --gpu-memory")
    return snapshot


def _committed_bytes(snapshot: Snapshot, selection: DeviceSelection) -> tuple[dict[DeviceIndex, int], tuple[str, ...]]:
    """Return free memory that is reserved, or that jobs which have just started will take; and notes about these."""
    from vramtop.monitor.attach import find_starting_processes, remaining_bytes_by_device  # a third of the start-up

    reservations = Reservations()
    committed = reservations.committed(snapshot)
    reserved_pids = reservations.reserved_pids(snapshot)
    gpus = {device.index for device in device_capacities(snapshot, {}, selection)}
    unread: list[str] = []
    growing = find_starting_processes(
        snapshot, _estimate_attached, only=gpus, exclude_pids=reserved_pids, on_unread=unread.append
    )
    for place, size in remaining_bytes_by_device(growing).items():
        committed[place] = committed.get(place, 0) + size
    return committed, (*(each.sentence for each in growing), *unread)


def _estimate_attached(attachment: "Attachment") -> Budget:
    return estimate(attachment.reading.job(), environ=attachment.estimate_environ)


def _select_devices(text: str | None, snapshot: Snapshot) -> tuple[DeviceSelection, tuple[str, ...]]:
    """Return the GPUs of ``--gpu``, otherwise of CUDA_VISIBLE_DEVICES, otherwise all; and notes about the choice."""
    return _visible_devices(snapshot) if text is None else (gpu_indices(text, snapshot), ())


def _visible_devices(snapshot: Snapshot) -> tuple[DeviceSelection, tuple[str, ...]]:
    from vramtop.monitor.attach import GpuEnvironment, nvml_mig_parent, visible_gpus, visible_mig_devices

    choice = GpuEnvironment.from_environ(os.environ, local_rank=None, mig_parent=nvml_mig_parent)
    if choice.cuda_visible_devices is None:
        return None, ()
    mig_devices = visible_mig_devices(choice, snapshot.gpus)
    if mig_devices:
        return mig_devices, (
            f"Only {', '.join(mig_devices)}: CUDA_VISIBLE_DEVICES is {choice.cuda_visible_devices!r}.",
        )
    indices, uncertainty = visible_gpus(choice, snapshot.gpus)
    if not indices:
        raise InputError(
            f"CUDA_VISIBLE_DEVICES is {choice.cuda_visible_devices!r}, which names no GPU here; "
            "unset it, or give --gpu INDEX"
        )
    note = f"Only GPU {gpu_list(indices)}: CUDA_VISIBLE_DEVICES is {choice.cuda_visible_devices!r}."
    return indices, (note, f"They may be different ones: {uncertainty}.") if uncertainty else (note,)


def _scale_bytes(devices: Sequence[DeviceCapacity], budget: Budget) -> int | None:
    """Return what the full width of the budget's bar stands for; None: the budget itself."""
    total = max((device.total_bytes or 0 for device in devices), default=0)
    return total if total > budget.peak.device_bytes else None
