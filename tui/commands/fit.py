"""``vramtop fit JOB``: whether a job fits, here and now, or on a machine that is described."""

import argparse
from collections.abc import Callable, Sequence

from vramtop.estimator.budget import Budget
from vramtop.estimator.errors import CannotTellError, InputError
from vramtop.estimator.gpus import Gpu, match_nvml_name
from vramtop.estimator.job import Job
from vramtop.estimator.methods import estimate
from vramtop.estimator.suggestions import Suggestion, suggest
from vramtop.monitor.fit import Fit, Room, Verdict, fit, rooms_of
from vramtop.monitor.nvml import NvmlSource
from vramtop.monitor.snapshot import Snapshot

from ..job_argument import read_job
from ..json_text import json_text
from ..progress import Progress
from ..report import budget_lines, fit_lines
from ..terminal import look
from .estimate import elsewhere, method

EXIT_CODES: dict[Verdict, int] = {"fits": 0, "does_not_fit": 1, "unknown": 3, "tight": 4}
_SHOWN = 6


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the verdict; the exit code is the contract's: 0 fits, 1 does not, 3 cannot tell, 4 tight."""
    job, notes = read_job(options, launch)
    gpu, memory = elsewhere(options, job)
    if memory:
        rooms = rooms_elsewhere(gpu, memory, options.gpus or job.parallel.world_size)
    else:
        snapshot = _snapshot_here()
        rooms = rooms_of(snapshot, {}, chosen_gpus(options.gpu, snapshot))
        gpu = next((match_nvml_name(room.name, room.total_bytes) for room in rooms if room.name), None)
        memory = max((room.total_bytes for room in rooms if room.total_bytes), default=None)
    with Progress(quiet=options.json) as progress:
        budget = estimate(
            job, method=method(options), gpu=gpu, memory_bytes=memory, python=options.python, progress=progress
        )
    found = fit(budget, rooms)
    smaller = _suggestions(job, gpu, budget, rooms) if found.verdict in ("does_not_fit", "tight") else ()
    if options.json:
        print(json_text(_to_json(found, budget, smaller, rooms) | ({"notes": list(notes)} if notes else {})))
    else:
        terminal = look(ascii_only=options.ascii)
        print("\n".join(fit_lines(found, budget, smaller, terminal)))
        print()
        print("\n".join(budget_lines(budget, terminal, scale_bytes=_scale(rooms, budget))))
        for note in notes:
            print(terminal.text(f"note: {note}"))
    return EXIT_CODES[found.verdict]


def _to_json(found: Fit, budget: Budget, suggestions: Sequence[Suggestion], rooms: Sequence[Room]) -> dict[str, object]:
    changes = [
        {
            "changes": s.changes,
            "device_bytes": s.budget.peak.device_bytes,
            "verdict": fit(s.budget, rooms).verdict,
            "why": s.why,
        }
        for s in suggestions
    ]
    return {"budget": budget.to_json(), **found.to_json(), "sentence": found.sentence, "suggestions": changes}


def _suggestions(job: Job, gpu: Gpu | None, budget: Budget, rooms: Sequence[Room]) -> tuple[Suggestion, ...]:
    """Changes that make it fit, cheapest first; where none does, those that come closest."""
    found = suggest(job, budget, lambda changed: estimate(changed, gpu=gpu))
    enough = [s for s in found if fit(s.budget, rooms).verdict == "fits"]
    size: Callable[[Suggestion], int] = lambda s: s.budget.peak.device_bytes  # noqa: E731 - a key, used once
    return tuple(enough[:_SHOWN] or sorted(found, key=size)[:_SHOWN])


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


def chosen_gpus(text: str | None, snapshot: Snapshot) -> list[int] | None:
    """The indices that ``--gpu`` names; None: all.

    Raises:
        InputError: there is no such GPU.
    """
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


def rooms_elsewhere(gpu: Gpu | None, memory: int, count: int) -> tuple[Room, ...]:
    """So many empty cards of a kind, or of a size, that are not in this machine."""
    reserved = gpu.reserved_bytes or 0 if gpu and memory == gpu.total_bytes else 0
    name = gpu.label if gpu else "as described"
    return tuple(
        Room(index=index, uuid=None, name=name, total_bytes=memory, free_bytes=memory - reserved)
        for index in range(count)
    )


def _scale(rooms: Sequence[Room], budget: Budget) -> int | None:
    total = max((room.total_bytes or 0 for room in rooms), default=0)
    return total if total > budget.peak.device_bytes else None
