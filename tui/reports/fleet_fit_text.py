"""A job over a fleet as text: the verdict, and a table of the hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.host.plain_text import duration_text
from vramtop.monitor.snapshot.snapshot import gpu_list

from ..draw.labels import shorten
from ..draw.palette import VERDICTS
from ..draw.text_output import format_table, truncate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from vramtop.estimator.common.errors import Verdict
    from vramtop.monitor.fleet.placing import FleetFit, HostFit

    from ..draw.text_output import TextOutput

_HEAD = ("  HOST", "GPU", "OF", "NOW", "LATER", "LEFT GiB", "CARD")
_ALIGNED = "<<><<><"
_MAX_HOST_CHARACTERS = 24
_MAX_ROWS = 20
_MAX_REASONS = 10
_MAX_NAMES = 4


def fleet_fit_sentence(fit: FleetFit) -> str:
    """Return the verdict in words: where the job can be started now, or on how many hosts later."""
    need = _need(fit)
    if fit.now in ("fits", "tight"):
        where = _joined([f"{host.host} (GPU {taken_gpus_text(host)})" for host in fit.placement])
        doubt = ", but may take more" if fit.now == "tight" else ""
        expected = "is expected to fit" if fit.now == "tight" else "fits"
        others = fit.count(lambda host: host.now, fit.now) - 1 if fit.hosts_needed == 1 else 0
        could = f"; {others} other host{'s' if others > 1 else ''} could take it too" if others else ""
        return (
            f"{need}{expected} on {where}{doubt}; the largest free block on a host is then "
            f"{format_gib(fit.largest_block_bytes)} GiB{could}"
        )
    several = f"{fit.hosts_needed} hosts together" if fit.hosts_needed > 1 else "a host"
    if fit.now == "unknown":
        return f"{need}vramtop cannot tell whether {several} can take it now: {_unknown(fit)}"
    if fit.empty == "does_not_fit":
        none = (
            f"no {fit.hosts_needed} hosts together can take it"
            if fit.hosts_needed > 1
            else ("does not fit on any host")
        )
        return f"{need}{none}, even if nothing else runs there"
    none = (
        f"no {fit.hosts_needed} hosts together can take it now"
        if fit.hosts_needed > 1
        else ("does not fit on any host now")
    )
    after = {
        "fits": "it fits once the running jobs have ended",
        "tight": "it is tight once the running jobs have ended",
        "does_not_fit": "other programs hold the memory, so it will not fit after the known jobs end either",
        "unknown": "the memory left after the running jobs is unknown",
    }[fit.later]
    return f"{need}{none}; {after}"


def fleet_fit_lines(fit: FleetFit, output: TextOutput, *, verbose: bool = False) -> Iterator[str]:
    """Yield the verdict, the hosts, and those that are not considered.

    Args:
        fit: of a job.
        output: what the output can show.
        verbose: every host, not the first ones only.
    """
    mark = VERDICTS[fit.now]
    head = output.text(f"{mark.letter} {mark.word}")
    first, *further = output.wrapped(fleet_fit_sentence(fit), indent=f"{head}  ", further="  ")
    yield output.paint(head, mark.colour, bold=True) + first[len(head) :]
    yield from further
    considered = [host for host in fit.hosts if host.is_considered]
    if considered:
        yield ""
        shown = considered if verbose else considered[:_MAX_ROWS]
        placed = {host.host for host in fit.placement}
        yield from _table([_row(host, host.host in placed) for host in shown], output)
        yield from _more(len(considered) - len(shown), output)
    told = [host for host in fit.hosts if host.reason or not host.is_considered]
    if told:
        yield ""
        shown = told if verbose else told[:_MAX_REASONS]
        for host in shown:
            yield from output.wrapped(f"{host.host}: {host_reason(host)}", further="  ")
        yield from _more(len(told) - len(shown), output)


def _need(fit: FleetFit) -> str:
    """Return what the job needs on the type of GPU of the first host, with a comma; empty: not estimated."""
    size = next((host.need_bytes for host in fit.hosts if host.need_bytes is not None), None)
    if size is None:
        return ""
    times = f"{fit.ranks:,} × " if fit.ranks > 1 else ""
    return f"needs {times}{format_gib(size)} GiB: "


def _unknown(fit: FleetFit) -> str:
    """Return why it cannot be told."""
    absent = sum(not host.is_considered and host.now == "unknown" for host in fit.hosts)
    unread = fit.count(lambda host: host.now, "unknown")
    parts = []
    if absent:
        parts.append(f"{absent} of {len(fit.hosts)} hosts {'have' if absent > 1 else 'has'} no current readings")
    if unread:
        parts.append(f"readings of {unread} {'others' if absent else 'hosts'} are unknown" if unread > 1 else
                     f"readings of {'another' if absent else 'a host'} are unknown")  # fmt: skip
    return " and ".join(parts)


def _joined(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def taken_gpus_text(host: HostFit) -> str:
    """Return the GPUs that the job would take on a host, such as ``0-3``; empty: none."""
    labels = [gpu.label for gpu in host.taken]
    return gpu_list(sorted(map(int, labels)) if all(map(str.isdecimal, labels)) else sorted(labels))


def _row(host: HostFit, is_placed: bool) -> tuple[str, ...]:
    card = (host.card.name if host.card else None) or "name n/a"
    return (
        f"{'*' if is_placed else ' '} {shorten(host.host, _MAX_HOST_CHARACTERS)}",
        taken_gpus_text(host),
        str(host.gpus),
        _verdict(host.now),
        _verdict(host.later),
        "" if host.left_bytes is None else format_gib(host.left_bytes),
        card.removeprefix("NVIDIA "),
    )


def _verdict(verdict: Verdict) -> str:
    mark = VERDICTS[verdict]
    return f"{mark.letter} {mark.word.lower()}"


def _table(rows: Iterable[tuple[str, ...]], output: TextOutput) -> Iterator[str]:
    """Yield the table; a narrow terminal does without the cards."""
    whole = [_HEAD, *rows]
    lines = [output.text(line) for line in format_table(whole, _ALIGNED)]
    if not output.unlimited_width and max(map(len, lines)) > output.width:
        lines = [output.text(line) for line in format_table([row[:-1] for row in whole], _ALIGNED[:-1])]
        lines = [truncate(line, output.width) for line in lines]
    yield from lines


def host_reason(host: HostFit) -> str | None:
    """Return why a verdict of a host is unknown or why it is not considered, with the age of its last reading."""
    if host.state == "live":
        return host.reason
    last = "" if host.age_seconds is None else f" (last reading {duration_text(host.age_seconds)} ago)"
    return f"not considered, {host.state}{last}: {host.reason or 'no reason known'}"


def _more(count: int, output: TextOutput) -> Iterator[str]:
    if count:
        yield output.text(f"  … and {count} more: -v or --json lists them")
