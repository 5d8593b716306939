"""``vramtop fit`` over a fleet: the verdict of each host, and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import to_builtins

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.fleet.placing import GOOD, place_job
from vramtop.monitor.host.plain_text import duration_text

from ...draw.labels import shorten
from ...draw.palette import VERDICTS
from ...draw.text_output import detect_output, format_table, truncate
from ...job.budgets_by_card import BudgetsByCard
from ...reports.budget_text import budget_lines, closing_lines
from ..json_text import json_text
from ..measured_runs import correction, estimate_job
from .fit_check import EXIT_CODES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from vramtop.monitor.fleet.fleet import Fleet
    from vramtop.monitor.fleet.placing import FleetFit, HostFit

    from ...draw.text_output import TextOutput
    from ...job.load_job import LoadedJob
    from ..json_types import FitOverHostsJson

_RAM = "The RAM of the hosts is not checked; vramtop preflight on the host itself does that."
_HEAD = ("  HOST", "GPU", "OF", "VERDICT", "FREE GiB", "CARD")
_ALIGNED = "<<><><"
_MAX_HOST_CHARACTERS = 24
_MAX_ROWS = 20
_MAX_NAMES = 4


def check_on_fleet(options: argparse.Namespace, loaded: LoadedJob, fleet: Fleet) -> int:
    """Print which hosts can take the job; return the exit code of the verdict.

    Args:
        options: of the command line.
        loaded: the job.
        fleet: the hosts.
    """
    job = loaded.job
    budgets = BudgetsByCard(
        job,
        lambda job, gpu, memory_bytes: estimate_job(options, replace(loaded, job=job), gpu, memory_bytes, here=False),
        lambda budget, gpu: correction(options, job, gpu, here=False)(budget),
        gpu_type=options.gpu_type,
    )
    fit = place_job(fleet, job.parallel.world_size, budgets.on)
    first = next((host for host in (*fit.placement, *fit.hosts) if host.name), None)
    wanted = (first.name, first.total_bytes) if first else None
    budget = next((budget for card, budget in budgets.by_card.items() if card[:2] == wanted), None)
    notes = [*loaded.notes, *([_RAM] if budget and budget.host else [])]
    sentence = _sentence(fit)
    if options.json:
        found: FitOverHostsJson = {
            "schema": 1,
            "budget": budget.to_json() if budget else None,
            **to_builtins(fit),
            "sentence": sentence,
            "notice": fleet.notice,
            "notes": notes,
        }
        print(json_text(found))
        return EXIT_CODES[fit.verdict]
    output = detect_output(ascii_only=options.ascii)
    lines = list(_lines(fit, sentence, output, verbose=options.verbose))
    if budget is not None:
        lines += ["", *budget_lines(budget, output), *closing_lines(budget, notes, output, verbose=options.verbose)]
    print("\n".join(lines))
    return EXIT_CODES[fit.verdict]


def _sentence(fit: FleetFit) -> str:
    """Return the verdict in words."""
    size = next((host.device_bytes for host in (*fit.placement, *fit.hosts) if host.device_bytes is not None), None)
    times = f"{fit.ranks:,} × " if fit.ranks > 1 else ""
    need = "" if size is None else f"needs {times}{format_gib(size)} GiB: "
    if fit.placement:
        names = [f"{host.host} (GPU {', '.join(host.placement)})" for host in fit.placement]
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        fits = "fits on" if fit.verdict == "fits" else "is expected to fit, but may take more, on"
        return f"{need}{fits} {', '.join(names[:_MAX_NAMES])}{more}"
    unknown = sum(host.verdict == "unknown" for host in fit.hosts)
    if unknown:
        return f"{need}no host can take it now, but {unknown} of {len(fit.hosts)} cannot be judged"
    return f"{need}does not fit on any host now"


def _lines(fit: FleetFit, sentence: str, output: TextOutput, *, verbose: bool) -> Iterator[str]:
    """Yield the verdict, the hosts, and why some are not judged."""
    mark = VERDICTS[fit.verdict]
    head = output.text(f"{mark.letter} {mark.word}")
    first, *further = output.wrapped(sentence, indent=f"{head}  ", further="  ")
    yield output.paint(head, mark.colour, bold=True) + first[len(head) :]
    yield from further
    judged = [host for host in fit.hosts if host.name]
    told = [f"{host.host}: {_reason(host)}" for host in fit.hosts if host.reason or not host.name]
    placed = {host.host for host in fit.placement}
    shown = judged if verbose else judged[:_MAX_ROWS]
    if shown:
        yield ""
        yield from _table([_HEAD, *(_row(host, host.host in placed) for host in shown)], output)
    if told:
        yield ""
    for line in told if verbose else told[:_MAX_ROWS]:
        yield from output.wrapped(line, further="  ")
    if not verbose and max(len(judged), len(told)) > _MAX_ROWS:
        yield output.text("  … and more: -v or --json lists them")


def _row(host: HostFit, is_placed: bool) -> tuple[str, ...]:
    mark = VERDICTS[host.verdict]
    return (
        f"{'*' if is_placed else ' '} {shorten(host.host, _MAX_HOST_CHARACTERS)}",
        ", ".join(host.placement) if host.verdict in GOOD else "",
        str(host.gpus),
        f"{mark.letter} {mark.word.lower()}",
        format_gib(host.free_bytes),
        (host.name or "").removeprefix("NVIDIA "),
    )


def _table(rows: Sequence[tuple[str, ...]], output: TextOutput) -> Iterator[str]:
    """Yield the table; a narrow terminal does without the cards."""
    lines = [output.text(line) for line in format_table(rows, _ALIGNED)]
    if not output.unlimited_width and max(map(len, lines)) > output.width:
        narrow = format_table([row[:-1] for row in rows], _ALIGNED[:-1])
        lines = [truncate(output.text(line), output.width) for line in narrow]
    yield from lines


def _reason(host: HostFit) -> str:
    """Return why a host is not judged, with the age of its last reading."""
    if host.state == "live":
        return host.reason or "no reason known"
    last = "" if host.age_seconds is None else f" (last reading {duration_text(host.age_seconds)} ago)"
    return f"not considered, {host.state}{last}: {host.reason or 'no reason known'}"


def refuse_what_is_for_this_machine(options: argparse.Namespace) -> None:
    """Refuse options that choose GPUs of this machine, describe one, or ask a scheduler.

    Raises:
        InputError: one is given.
    """
    given = {
        "--gpu": options.gpu,
        "--gpu-memory": options.gpu_memory,
        "--host-memory": options.host_memory,
        "--keep-global-batch": options.keep_global_batch,
        "--wait": options.wait,
        "--timeout": options.timeout,
        "--exec": options.exec,
        "--slurm": options.slurm,
        "--kubernetes": options.kubernetes,
    }
    source = "--prometheus" if options.prometheus else "--host"
    for name, value in given.items():
        if value:
            raise InputError(f"{name} cannot be combined with {source}, which asks hosts for their current free memory")
