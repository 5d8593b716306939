"""``vramtop fit JOB``: whether a job fits, here and now, or on a machine that is described."""

import argparse
from collections.abc import Callable, Sequence

from vramtop.estimator.budget import Budget
from vramtop.estimator.errors import CannotTellError, InputError
from vramtop.estimator.gpus import Gpu, match_nvml_name
from vramtop.estimator.methods import estimate
from vramtop.estimator.sizes import parse_size
from vramtop.monitor.fit import Fit, Room, Verdict, fit, rooms_of, with_host
from vramtop.monitor.host_memory import HostRoom, host_room
from vramtop.monitor.nvml import NvmlSource
from vramtop.monitor.snapshot import Snapshot

from ..fit_advice import Advice, Machine, advice_json, advice_lines, advise
from ..job_argument import JobSource, read_source
from ..json_text import json_text
from ..progress import Progress
from ..report import budget_lines, fit_lines
from ..terminal import look
from .estimate import elsewhere, method

EXIT_CODES: dict[Verdict, int] = {"fits": 0, "does_not_fit": 1, "unknown": 3, "tight": 4}
_GPUS_PER_MACHINE = 8
"""Of a machine elsewhere, of which nothing is known: as many as servers have."""


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the verdict; the exit code is the contract's: 0 fits, 1 does not, 3 cannot tell, 4 tight."""
    source = read_source(options, launch)
    job = source.job
    gpu, memory = elsewhere(options, job)
    if memory:
        rooms = _rooms_elsewhere(gpu, memory, options.gpus or job.parallel.world_size)
    else:
        snapshot = _snapshot_here()
        rooms = rooms_of(snapshot, {}, _chosen(options.gpu, snapshot))
        gpu = next((match_nvml_name(room.name, room.total_bytes) for room in rooms if room.name), None)
    here = not memory
    memory = memory or max((room.total_bytes for room in rooms if room.total_bytes), default=None)
    judge = _judge(rooms, _host_room(options, here=here), here=here)
    with Progress(quiet=options.json) as progress:
        budget = estimate(
            job, method=method(options), gpu=gpu, memory_bytes=memory, python=options.python, progress=progress
        )
        found = judge(budget)
        machine = Machine(gpu=gpu, memory_bytes=memory, gpus=len(rooms), python=options.python)
        advice = advise(job, budget, lambda b: judge(b).verdict, machine, method=method(options), progress=progress)
    if options.json:
        print(json_text(_to_json(found, budget, advice, source)))
    else:
        terminal = look(ascii_only=options.ascii)
        print("\n".join([*fit_lines(found, budget, terminal), *advice_lines(advice, source, terminal)]))
        print()
        print("\n".join(budget_lines(budget, terminal, scale_bytes=_scale(rooms, budget))))
        for note in source.notes:
            print(terminal.text(f"note: {note}"))
    return EXIT_CODES[found.verdict]


def _to_json(found: Fit, budget: Budget, advice: Advice, source: JobSource) -> dict[str, object]:
    verdict = {"budget": budget.to_json(), **found.to_json(), "sentence": found.sentence}
    return verdict | advice_json(advice, source) | ({"notes": list(source.notes)} if source.notes else {})


def _judge(rooms: Sequence[Room], host: HostRoom | None, *, here: bool) -> Callable[[Budget], Fit]:
    """Whether a budget fits these GPUs, and their host where its RAM is known."""

    def judge(budget: Budget) -> Fit:
        found = fit(budget, rooms)
        if host is None:
            return found
        ranks = min(len(budget.ranks), len(rooms)) if here else min(len(budget.ranks), _GPUS_PER_MACHINE)
        return with_host(found, budget, host, ranks=max(1, ranks))

    return judge


def _host_room(options: argparse.Namespace, *, here: bool) -> HostRoom | None:
    """The RAM that was named, else this machine's where its GPUs are meant; None: not known."""
    if options.host_memory:
        return HostRoom(available_bytes=parse_size(options.host_memory))
    return host_room() if here else None


def _snapshot_here() -> Snapshot:
    source = NvmlSource()
    try:
        source.open()
    except CannotTellError as error:
        advice = "name the machine with --gpu-type or --gpu-memory"
        raise CannotTellError(f"{error.message.rstrip('.')}; {advice}") from None
    try:
        snapshot = source.read()
    finally:
        source.close()
    if not snapshot.gpus:
        raise CannotTellError("NVML sees no GPU here; name the machine with --gpu-type or --gpu-memory")
    return snapshot


def _chosen(text: str | None, snapshot: Snapshot) -> list[int] | None:
    if text is None:
        return None
    known = [gpu.index for gpu in snapshot.gpus]
    try:
        chosen = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--gpu {text}: give indices, such as 0 or 0,1") from None
    absent = [index for index in chosen if index not in known]
    if absent:
        raise InputError(f"--gpu {text}: there is no GPU {absent[0]} here, only {', '.join(map(str, known))}")
    return chosen


def _rooms_elsewhere(gpu: Gpu | None, memory: int, count: int) -> tuple[Room, ...]:
    reserved = gpu.reserved_bytes or 0 if gpu and memory == gpu.total_bytes else 0
    name = gpu.label if gpu else "as described"
    return tuple(
        Room(index=index, uuid=None, name=name, total_bytes=memory, free_bytes=memory - reserved)
        for index in range(count)
    )


def _scale(rooms: Sequence[Room], budget: Budget) -> int | None:
    total = max((room.total_bytes or 0 for room in rooms), default=0)
    return total if total > budget.peak.device_bytes else None
