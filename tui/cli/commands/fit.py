"""``vramtop fit JOB``: whether a job fits, here and now, or on a machine that is described."""

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.sizes import parse_size
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import Gpu
from vramtop.estimator.job.job import Job
from vramtop.monitor.attach.attach import Attachment
from vramtop.monitor.attach.gpu_assignment import DeviceChoice, nvml_mig_parent, visible_gpus, visible_mig_devices
from vramtop.monitor.attach.starting_jobs import by_place, growing_jobs
from vramtop.monitor.board.fit import Fit, Room, Verdict, fit, rooms_of, with_host
from vramtop.monitor.host.host_memory import HostRam, available_host_memory
from vramtop.monitor.snapshot.snapshot import DeviceIndex, Snapshot
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
from vramtop.monitor.storage.reservations import Reservations

from ...draw.text_output import detect_output
from ...job.load_job import LoadedJob, load_from_options
from ...reports.budget_text import budget_lines, fit_lines
from ..json_text import json_text
from ..progress import Progress
from .estimate import elsewhere, method
from .fit_advice import Advice, Machine, advice_json, advice_lines, advise
from .wait import Wait, exec_program, program_to_start, wait_until_it_fits

EXIT_CODES: dict[Verdict, int] = {"fits": 0, "does_not_fit": 1, "unknown": 3, "tight": 4}
Chosen = Sequence[int | str] | None
"""GPUs by index and MIG devices by uuid; None: all."""
_GPUS_PER_MACHINE = 8
"""Of a machine elsewhere, of which nothing is known: as many as servers have."""


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the verdict; the exit code is the contract's: 0 fits, 1 does not, 3 cannot tell, 4 tight."""
    program = program_to_start(options, launch)
    if options.wait:
        return _wait(options, launch, program)
    asked = [flag for flag in ("timeout", "exec") if getattr(options, flag) is not None]
    if asked:
        raise InputError(f"--{asked[0]} goes with --wait")
    given = load_from_options(options, launch)
    job = given.job
    gpu, memory = elsewhere(options, job)
    here = not memory
    if memory:
        rooms = rooms_elsewhere(gpu, memory, options.gpus or job.parallel.world_size)
    else:
        with _source_here() as source:
            snapshot = _read_here(source)
        chosen, seen = _chosen(options.gpu, snapshot)
        committed, growing = _committed(snapshot, chosen)
        rooms = rooms_of(snapshot, committed, chosen)
        given = replace(given, notes=(*given.notes, *seen, *growing))
        gpu, memory = _card(rooms)
    budget = _estimate(options, job, gpu, memory)
    judge = _judge(rooms, _host_room(options, here=here), here=here)
    return _answer(options, given, budget, judge, Machine(gpu=gpu, memory_bytes=memory, gpus=len(rooms)))


def _wait(options: argparse.Namespace, launch: Sequence[str] | None, program: Sequence[str]) -> int:
    """Wait, and then start the program, or print the verdict."""
    given = load_from_options(options, launch)
    job = given.job
    if elsewhere(options, job)[1]:
        raise InputError("--wait waits for GPUs of this machine; leave out --gpu-type, --gpu-memory and target.gpu")
    with _source_here() as source:
        snapshot = _read_here(source)
        chosen, seen = _chosen(options.gpu, snapshot)
        given = replace(given, notes=(*given.notes, *seen))
        gpu, memory = _card(rooms_of(snapshot, {}, chosen))
        asked = Wait(
            budget=_estimate(options, job, gpu, memory),
            read=lambda: _read_here(source),
            rooms=lambda now: rooms_of(now, _committed(now, chosen)[0], chosen),
            interval=options.interval,
            timeout=options.timeout,
            program=program,
            judge=lambda budget, rooms: _judge(rooms, _host_room(options, here=True), here=True)(budget),
        )
        found = wait_until_it_fits(asked)
    if program and found.verdict == "fits":
        exec_program(program, found)
    rooms = [each.room for each in found.gpus]
    judge = _judge(rooms, _host_room(options, here=True), here=True)
    return _answer(options, given, asked.budget, judge, Machine(gpu=gpu, memory_bytes=memory, gpus=len(rooms)))


def _estimate(options: argparse.Namespace, job: Job, gpu: Gpu | None, memory: int | None) -> Budget:
    with Progress(quiet=options.json) as progress:
        return estimate(
            job, method=method(options), gpu=gpu, memory_bytes=memory, python=options.python, progress=progress
        )


def _card(rooms: Sequence[Room]) -> tuple[Gpu | None, int | None]:
    """The catalogue's entry and the size of the GPUs that are considered."""
    gpu = next((room.card for room in rooms if room.name), None)
    return gpu, max((room.total_bytes for room in rooms if room.total_bytes), default=None)


def _answer(
    options: argparse.Namespace, source: LoadedJob, budget: Budget, judge: Callable[[Budget], Fit], machine: Machine
) -> int:
    found = judge(budget)
    source = replace(source, notes=(*source.notes, *_naming(found)))
    with Progress(quiet=options.json) as progress:
        advice = advise(
            source.job,
            budget,
            lambda changed: judge(changed).verdict,
            replace(machine, python=options.python),
            method=method(options),
            keep_global_batch=options.keep_global_batch,
            progress=progress,
        )
    if options.json:
        print(json_text(_to_json(found, budget, advice, source)))
    else:
        terminal = detect_output(ascii_only=options.ascii)
        print("\n".join([*fit_lines(found, budget, terminal), *advice_lines(advice, source, terminal)]))
        print()
        print("\n".join(budget_lines(budget, terminal, scale_bytes=_scale([each.room for each in found.gpus], budget))))
        for note in source.notes:
            print(terminal.text(f"note: {note}"))
    return EXIT_CODES[found.verdict]


def _naming(found: Fit) -> tuple[str, ...]:
    """How to name the GPU to CUDA where some are in MIG mode."""
    names = ",".join(found.devices)
    clear = not any(gpu.room.mig for gpu in found.gpus) or os.environ.get("CUDA_VISIBLE_DEVICES") == names
    if clear or found.verdict not in ("fits", "tight"):
        return ()
    said = "CUDA shows a program one MIG device only, and no GPU beside it: start this one with"
    return (f"{said} CUDA_VISIBLE_DEVICES={names}.",)


def _to_json(found: Fit, budget: Budget, advice: Advice, source: LoadedJob) -> dict[str, object]:
    verdict = {"budget": budget.to_json(), **found.to_json(), "sentence": found.sentence}
    return verdict | advice_json(advice, source) | ({"notes": list(source.notes)} if source.notes else {})


def _judge(rooms: Sequence[Room], host: HostRam | None, *, here: bool) -> Callable[[Budget], Fit]:
    """Whether a budget fits these GPUs, and their host where its RAM is known."""

    def judge(budget: Budget) -> Fit:
        found = fit(budget, rooms)
        if host is None:
            return found
        ranks = min(len(budget.ranks), len(rooms)) if here else min(len(budget.ranks), _GPUS_PER_MACHINE)
        return with_host(found, budget, host, ranks=max(1, ranks))

    return judge


def _host_room(options: argparse.Namespace, *, here: bool) -> HostRam | None:
    """The RAM that was named, else this machine's where its GPUs are meant; None: not known."""
    if options.host_memory:
        return HostRam(available_bytes=parse_size(options.host_memory))
    return available_host_memory() if here else None


@contextlib.contextmanager
def _source_here() -> Iterator[NvmlSource]:
    source = NvmlSource()
    try:
        source.open()
    except CannotTellError as error:
        advice = "name the machine with --gpu-type or --gpu-memory"
        raise CannotTellError(f"{error.message.rstrip('.')}; {advice}") from None
    try:
        yield source
    finally:
        source.close()


def _read_here(source: NvmlSource) -> Snapshot:
    snapshot = source.read()
    if not snapshot.gpus:
        raise CannotTellError("NVML sees no GPU here; name the machine with --gpu-type or --gpu-memory")
    return snapshot


def _committed(snapshot: Snapshot, chosen: Chosen) -> tuple[dict[DeviceIndex, int], tuple[str, ...]]:
    """What is free and spoken for: by promises, and by jobs that have just started; and who these are."""
    reservations = Reservations()
    committed = reservations.committed(snapshot)
    promised = reservations.reserved_pids(snapshot)
    gpus = {room.index for room in rooms_of(snapshot, {}, chosen)}
    growing = growing_jobs(snapshot, _quick, only=gpus, apart_from=promised)
    for place, size in by_place(growing).items():
        committed[place] = committed.get(place, 0) + size
    return committed, tuple(each.sentence for each in growing)


def _quick(attachment: Attachment) -> Budget:
    return estimate(attachment.reading.job(), environ=attachment.environ_hf)


def _chosen(text: str | None, snapshot: Snapshot) -> tuple[Chosen, tuple[str, ...]]:
    """The GPUs that are asked for: by ``--gpu``, else by CUDA_VISIBLE_DEVICES, else all; and what to know of that."""
    return _visible(snapshot) if text is None else (named_gpus(text, snapshot), ())


def named_gpus(text: str, snapshot: Snapshot) -> list[int]:
    """The indices that ``--gpu`` names.

    Raises:
        InputError: there is no such GPU.
    """
    known = [gpu.index for gpu in snapshot.gpus]
    try:
        chosen = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--gpu {text}: give indices, such as 0 or 0,1") from None
    absent = [index for index in chosen if index not in known]
    if absent:
        raise InputError(f"--gpu {text}: there is no GPU {absent[0]} here, only {', '.join(map(str, known))}")
    return chosen


def _visible(snapshot: Snapshot) -> tuple[Chosen, tuple[str, ...]]:
    choice = DeviceChoice.of(os.environ, local_rank=None, mig_parent=nvml_mig_parent)
    if choice.visible is None:
        return None, ()
    slices = visible_mig_devices(choice, snapshot.gpus)
    if slices:
        return slices, (f"Only {', '.join(slices)}: CUDA_VISIBLE_DEVICES is {choice.visible!r}.",)
    indices, doubt = visible_gpus(choice, snapshot.gpus)
    if not indices:
        raise InputError(
            f"CUDA_VISIBLE_DEVICES is {choice.visible!r}, which names no GPU here; unset it, or give --gpu INDEX"
        )
    said = f"Only GPU {', '.join(map(str, indices))}: CUDA_VISIBLE_DEVICES is {choice.visible!r}."
    return indices, (said, f"They may be others: {doubt}.") if doubt else (said,)


def rooms_elsewhere(gpu: Gpu | None, memory: int, count: int) -> tuple[Room, ...]:
    """So many empty cards of a kind, or of a size, that are not in this machine."""
    reserved = gpu.reserved_bytes or 0 if gpu and memory == gpu.total_bytes else 0
    name = gpu.label if gpu else "as described"
    return tuple(
        Room(
            index=index,
            uuid=None,
            name=name,
            total_bytes=memory,
            free_bytes=memory - reserved,
            reserved_bytes=reserved,
        )
        for index in range(count)
    )


def _scale(rooms: Sequence[Room], budget: Budget) -> int | None:
    total = max((room.total_bytes or 0 for room in rooms), default=0)
    return total if total > budget.peak.device_bytes else None
