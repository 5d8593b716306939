"""The lines above the fleet's table: source and time of the readings, and the sums over all live hosts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.content import Content

from vramtop.estimator.common import TIB, format_gib, format_size

from ...draw import MUTED, alarm, colour_of, join_to_width, left_and_right, on_colour, printable
from ..feed_status import FeedStatus, feed_signs

if TYPE_CHECKING:
    from vramtop.monitor.fleet import Fleet


_ANY_WIDTH = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFeed(FeedStatus):
    """Interval, age and state of the readings of many hosts."""

    source: str
    """What is read, in a few words: ``12 hosts over ssh``."""


def header_line(fleet: Fleet | None, feed: FleetFeed, width: int) -> Content:
    """Return the source at the left, and interval and time of the readings at the right."""
    right: list[Content | str] = [*feed_signs(feed)]
    if fleet is not None:
        right += [f"every {feed.interval:g} s", time.strftime("%H:%M:%S", time.localtime(fleet.time))]
    shown = join_to_width(right, width)
    left = join_to_width(
        [Content.styled("vramtop", "bold"), printable(feed.source)], max(0, width - 3 - shown.cell_length)
    )
    return left_and_right(left, shown, width)


def fleet_line(fleet: Fleet | None, width: int) -> Content:
    """Return the sums over all live hosts; what needs attention comes first. In few cells it has fewer words."""
    if fleet is None:
        return Content.styled("waiting for the first reading …", MUTED)
    line = join_to_width(_sums(fleet, short=False), _ANY_WIDTH)
    return line if line.cell_length <= width else join_to_width(_sums(fleet, short=True), width)


def _sums(fleet: Fleet, *, short: bool) -> list[Content | str]:
    totals, gpus = fleet.totals, fleet.totals.gpus
    parts: list[Content | str] = []
    if totals.silent_hosts:
        every = "" if short else f" of {totals.hosts} hosts"
        parts.append(Content.styled(f" {totals.silent_hosts}{every} silent ", alarm()))
    if totals.diverging_runs:
        every = "" if short else f" of {totals.runs} runs"
        parts.append(
            Content.styled(f" {totals.diverging_runs}{every} diverging ", f"bold {on_colour(colour_of('bad'))}")
        )
    parts += [f"{totals.connecting_hosts} connecting"] if totals.connecting_hosts else []
    if not gpus.gpus:
        return [*parts, Content.styled("no GPU could be read yet", MUTED)]
    size = format_size if gpus.total_bytes >= TIB else format_gib  # beyond one TiB each figure has its own unit
    total = "" if short else f" of {format_size(gpus.total_bytes)}"
    unit = " GiB" if short and size is format_gib else ""
    parts.append(Content.assemble((f"free {size(gpus.free_bytes)}", "bold"), f"{unit}{total}"))
    parts.append(f"{'commit' if short else 'committed'} {size(gpus.committed_bytes)}")
    at_least = "≥ " if gpus.unattributed_unknown else ""
    parts.append(f"{'unattr' if short else 'unattributed'} {at_least}{size(gpus.unattributed_bytes)}")
    parts += [f"{gpus.unknown_gpus} GPU{'s' * (gpus.unknown_gpus != 1)} n/a"] if gpus.unknown_gpus else []
    parts.append(f"{gpus.gpus} GPU{'s' * (gpus.gpus != 1)}")
    parts += [f"{totals.hosts} host{'s' * (totals.hosts != 1)}"] if not totals.silent_hosts else []
    parts += [f"{totals.runs} run{'s' * (totals.runs != 1)}"] if not totals.diverging_runs else []
    return parts


def notice_lines(fleet: Fleet | None, feed: FleetFeed) -> list[Content]:
    """Return what is wrong with the source as a whole."""
    sentences = [feed.failure, fleet.notice if fleet else None]
    return [Content.assemble((" ! ", alarm()), f" {printable(sentence)}") for sentence in sentences if sentence]
