"""What a bug report needs to know of the terminal."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vramtop.monitor.doctor.findings import Finding
from vramtop.monitor.doctor.system import SystemFacts

from .terminal import Terminal

_LEAST_COLUMNS, _LEAST_LINES = 80, 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalFacts:
    """What the terminal is, as far as programs can tell."""

    input_is_terminal: bool
    output_is_terminal: bool
    columns: int | None
    lines: int | None
    encoding: str
    colours: str
    """What can be shown, by the environment: ``true colour``, ``256``, ``16``, ``none``."""
    ascii_only: bool
    """What vramtop makes of it."""
    within: tuple[str, ...]
    """What it is reached through."""
    term: str | None


def terminal_facts(environ: Mapping[str, str], system: SystemFacts, terminal: Terminal) -> TerminalFacts:
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
        colours=_colours(environ),
        ascii_only=terminal.ascii_only,
        within=system.session,
        term=system.environment.get("TERM"),
    )


def terminal_findings(facts: TerminalFacts) -> Iterator[Finding]:
    """What keeps the dashboard from opening or from looking as it is meant."""
    if facts.term == "dumb":
        yield Finding(severity="note", sentence="TERM=dumb: the dashboard does not open here; vramtop --once does")
    if facts.ascii_only:
        sentence = f"the terminal's encoding is {facts.encoding}, or --ascii was given: only ASCII is drawn"
        yield Finding(severity="note", sentence=sentence)
    small = (facts.columns or _LEAST_COLUMNS) < _LEAST_COLUMNS or (facts.lines or _LEAST_LINES) < _LEAST_LINES
    if small:
        sentence = f"the terminal has {facts.columns}x{facts.lines} cells; the dashboard is made for 80x24 and more"
        yield Finding(severity="note", sentence=sentence)


def _colours(environ: Mapping[str, str]) -> str:
    term = environ.get("TERM", "")
    if environ.get("NO_COLOR") or term in ("", "dumb"):
        return "none"
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "true colour"
    return "256" if "256color" in term else "16"
