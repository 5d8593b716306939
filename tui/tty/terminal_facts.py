"""Facts about the terminal for a bug report."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping

import msgspec

from vramtop.monitor.doctor.facts import SystemFacts
from vramtop.monitor.doctor.issues import Issue

from ..draw.terminal_capabilities import ColourDepth, colour_depth, is_dumb_terminal
from ..draw.text_output import TextOutput


class TerminalFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The terminal, as far as a program can find out."""

    input_is_terminal: bool
    """Standard input is a terminal."""
    output_is_terminal: bool
    """Standard output is a terminal."""
    columns: int | None
    """Its width; None: there is no terminal."""
    lines: int | None
    """Its height; None: likewise."""
    encoding: str
    """Encoding of standard output."""
    colours: ColourDepth
    """Number of colours, by the environment."""
    dumb: bool
    """It cannot move the cursor, or its type is unknown."""
    ascii_only: bool
    """vramtop draws with ASCII characters only."""
    term: str | None
    """Value of TERM; None: not set."""


def terminal_facts(environ: Mapping[str, str], system: SystemFacts, output: TextOutput) -> TerminalFacts:
    """Collect the facts of the terminal that vramtop runs in."""
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
        ascii_only=output.ascii_only,
        term=system.environment.get("TERM"),
    )


_MIN_COLUMNS, _MIN_LINES = 80, 24


def terminal_issues(facts: TerminalFacts) -> Iterator[Issue]:
    """Yield what keeps the dashboard from opening, or from being drawn in full."""
    if facts.dumb:
        sentence = f"TERM={facts.term or ''}: the dashboard cannot open in this terminal; use vramtop --once"
        yield Issue(severity="note", sentence=sentence)
    if facts.ascii_only:
        sentence = "ASCII drawing: the locale or encoding is not UTF-8, or --ascii is given"
        yield Issue(severity="note", sentence=sentence)
    small = (facts.columns or _MIN_COLUMNS) < _MIN_COLUMNS or (facts.lines or _MIN_LINES) < _MIN_LINES
    if small:
        sentence = f"the terminal has {facts.columns}x{facts.lines} cells; the dashboard needs 80x24 to show everything"
        yield Issue(severity="note", sentence=sentence)
