"""What a bug report needs to know of the terminal."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vramtop.monitor.doctor.issues import Issue
from vramtop.monitor.doctor.system import SystemFacts

from ..draw.capabilities import ColourDepth, colour_depth, is_dumb_terminal
from ..draw.text_output import TextOutput

_LEAST_COLUMNS, _LEAST_LINES = 80, 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalFacts:
    """What the terminal is, as far as programs can tell."""

    input_is_terminal: bool
    output_is_terminal: bool
    columns: int | None
    lines: int | None
    encoding: str
    colours: ColourDepth
    """What can be shown, by the environment."""
    dumb: bool
    """It cannot move a cursor, or nobody knows which it is."""
    ascii_only: bool
    """What vramtop makes of it."""
    within: tuple[str, ...]
    """What it is reached through."""
    term: str | None


def terminal_facts(environ: Mapping[str, str], system: SystemFacts, terminal: TextOutput) -> TerminalFacts:
    """Of the terminal that vramtop runs in."""
    columns = lines = None
    for stream in (sys.__stdout__, sys.__stderr__, sys.__stdin__):
        if columns is None and stream is not None:
            with contextlib.suppress(OSError, ValueError):
                columns, lines = os.get_terminal_size(stream.fileno())
    return TerminalFacts(
        input_is_terminal=sys.stdin.isatty(),
        output_is_terminal=sys.stdout.isatty(),
        columns=columns,
        lines=lines,
        encoding=sys.stdout.encoding or "ascii",
        colours=colour_depth(environ),
        dumb=is_dumb_terminal(environ),
        ascii_only=terminal.ascii_only,
        within=system.session,
        term=system.environment.get("TERM"),
    )


def terminal_findings(facts: TerminalFacts) -> Iterator[Issue]:
    """What keeps the dashboard from opening or from looking as it is meant."""
    if facts.dumb:
        sentence = f"TERM={facts.term or ''}: the dashboard does not open in such a terminal; vramtop --once prints"
        yield Issue(severity="note", sentence=sentence)
    if facts.ascii_only:
        sentence = "only ASCII is drawn: the locale or the encoding is not UTF-8, or --ascii was given"
        yield Issue(severity="note", sentence=sentence)
    small = (facts.columns or _LEAST_COLUMNS) < _LEAST_COLUMNS or (facts.lines or _LEAST_LINES) < _LEAST_LINES
    if small:
        sentence = f"the terminal has {facts.columns}x{facts.lines} cells; the dashboard is made for 80x24 and more"
        yield Issue(severity="note", sentence=sentence)
