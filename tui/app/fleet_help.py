"""The help of the dashboard over many hosts: keys, and how to read its sums, rows and statuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from ..draw import STATUSES
from ..keys import shown_key
from ..screens.fleet import FleetScreen, FleetTable
from .help import STATUS_HELP, HelpScreen, entry, heading, key_rows, marked, short_help

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from textual.binding import BindingType

_SUMS = (
    ("free", "memory that new jobs can have, on all live hosts, of the sum of all GPUs"),
    ("committed", "what running jobs will yet allocate, and what is reserved for others; not free for a new job"),
    ("unattr", "unattributed: in use, but by no visible process; ≥: some hosts cannot tell"),
    ("silent", "hosts without figures of now: their figures are in no sum"),
    ("diverging", "runs over or under their budget, growing, or out of memory"),
)
_ROWS = (
    ("▸ ▾", "a host, folded, or unfolded with its GPUs below"),
    ("! silent", "no reading arrives any more; its row says for how long"),
    ("! unreachable", "it cannot be connected to, or vramtop does not run there; it is tried again by itself"),
    ("! no GPU", "vramtop runs there, and no GPU can be read: the row says why"),
    ("! GPU lost", "a GPU does not answer: it has fallen off the bus, or must be reset"),
    ("OVER 2/8", "2 of 8 processes have the worst status"),
    ("no budget", "programs run there whose job is not known; idle: none"),
    ("MAX", "of a run: the rank that holds the most; SPREAD: highest rank minus lowest; ALL: all ranks together"),
)
_FIT = (
    ("now", "the job fits into free memory less what running jobs will yet allocate"),
    ("later", "it fits once the running jobs that vramtop knows have ended; memory of other programs stays taken"),
    ("empty", "it fits if nothing else runs there"),
    ("*", "the job should go there: it leaves the largest free block on one host; LEFT: what those GPUs have left"),
    ("not considered", "the host has no figures of now: there is no verdict on old ones"),
    ("Enter", "in the job: trace a step for a better estimate; on a host: open it"),
)
_STATUS_HERE = {
    "incomplete": "settings of its job are missing, so its budget is a guess: attach to it on its host",
    "ended": "is no longer on its GPU",
}


class FleetHelpScreen(HelpScreen):
    """The help as one text to scroll through.

    Args:
        app_bindings: keys that work on every screen.
    """

    def __init__(self, app_bindings: Sequence[BindingType] = ()) -> None:
        super().__init__(app_bindings=app_bindings)

    def short(self) -> Content:
        """Return the keys in a few words each, and the statuses."""
        return short_help((*FleetTable.BINDINGS, *FleetScreen.BINDINGS, *self._app_bindings))

    def content(self) -> Content:
        """Return the text."""
        back = (shown_key("app.back"), "on the screen of a host or a run: back; ↑ ↓ PgUp PgDn scroll")
        bindings = (*FleetTable.BINDINGS, *FleetScreen.BINDINGS, *self._app_bindings)
        lines = [heading("Keys"), *_aligned((*key_rows(bindings), back))]
        lines += [heading("Sums, over all live hosts"), *_aligned(_SUMS)]
        lines += [heading("Rows, the worst first"), *_aligned(_ROWS)]
        lines += [heading(f"Fit ({shown_key('fleet.fit')}): which hosts can take a job"), *_aligned(_FIT)]
        lines += [heading("A run is")]
        meanings = STATUS_HELP | _STATUS_HERE
        lines += [marked(f" {mark.letter} {mark.word} ", mark, meanings[name]) for name, mark in STATUSES.items()]
        return Content("\n").join(lines)


def _aligned(rows: Iterable[tuple[str, str]]) -> list[Content]:
    rows = tuple(rows)
    width = max(len(key) for key, _ in rows)
    return [entry(f"{key:{width}}", text) for key, text in rows]
