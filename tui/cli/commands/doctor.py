"""``vramtop doctor``: one page about this machine for a bug report, problems first."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from vramtop.estimator.common.errors import ExitCode
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.doctor.facts import DoctorReport, SystemFacts
from vramtop.monitor.doctor.issues import Issue, Severity, find_issues
from vramtop.monitor.doctor.report import collect_report
from vramtop.monitor.storage.settings.in_force import DEFAULT

from ...draw.palette import CHECKS, Mark
from ...draw.terminal_capabilities import ColourDepth, colour_depth, is_dumb_terminal
from ...draw.text_output import TextOutput, detect_output
from ..json_text import json_text
from ..progress import Progress


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


def run(options: argparse.Namespace, _: Sequence[str] | None) -> int:
    """Print the page; exit code 0, or 3 if the driver cannot be used or does not answer.

    Raises:
        InputError: the interpreter of ``--python`` does not exist.
    """
    output = detect_output(ascii_only=options.ascii)
    with Progress(quiet=options.json) as progress:
        progress("examining the driver and the Python interpreters")
        report = collect_report(os.environ, python=options.python)
    terminal = terminal_facts(os.environ, report.system, output)
    issues = [*find_issues(report), *terminal_issues(terminal)]
    if count := len(options.settings.problems):  # their sentences may name hosts
        what = "something is" if count == 1 else f"{count} things are"
        issues.append(Issue("warning", f"{what} wrong in the settings; vramtop config shows the details"))
    changed = sorted(name for name, origin in options.settings.origins.items() if origin != DEFAULT)
    page = doctor_json(report, terminal, issues, changed)
    print(json_text(page) if options.json else "\n".join(doctor_lines(page, output)))
    sys.stdout.flush()
    return ExitCode.CANNOT_TELL if report.driver.problem or report.driver.hangs else ExitCode.DONE


def doctor_json(
    report: DoctorReport, terminal: TerminalFacts, issues: Sequence[Issue], changed: list[str]
) -> dict[str, Any]:
    """Return the page as ``vramtop doctor --json`` prints it."""
    facts = msgspec.to_builtins(report)
    gpus = facts["driver"].pop("gpus")
    return {
        "schema": 1,
        "findings": msgspec.to_builtins(tuple(issues)),
        "system": facts["system"],
        "driver": facts["driver"],
        "gpus": gpus,
        "access": facts["access"],
        "terminal": msgspec.to_builtins(terminal),
        "pythons": facts["pythons"],
        "files": facts["files"],
        "changed_settings": changed,
    }


_MAX_WIDTH = 80
"""Columns of the page, so that it can be read wherever it is pasted."""
_LABEL_WIDTH = 10
_MARKS: dict[Severity, Mark] = {
    "error": CHECKS["failure"],
    "warning": CHECKS["warning"],
    "note": CHECKS["skipped"],
}


def doctor_lines(page: dict[str, Any], output: TextOutput) -> Iterator[str]:
    """Yield the issues, and then all facts, each with the name that it has in the JSON."""
    output = replace(output, width=min(output.width, _MAX_WIDTH))
    yield output.paint("vramtop doctor", None, bold=True)
    yield ""
    for issue in page["findings"]:
        severity = issue["severity"]
        first, *others = output.wrapped(f"{_MARKS[severity].letter} {issue['sentence']}", further="  ")
        yield output.paint(first, None, bold=severity == "error")
        yield from others
    if not page["findings"]:
        yield output.text("✓ no problems found")
    yield ""
    for label, facts in _entries(page):
        yield from output.wrapped(f"{label:<{_LABEL_WIDTH}}{facts}", further=" " * _LABEL_WIDTH)


def _entries(page: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "system", _words(page["system"])
    yield "driver", _words({**page["driver"], "problem": None, "faults": None})  # they are issues
    for gpu in page["gpus"]:
        unread = {fault["field"] or "all": fault["code"] for fault in gpu["faults"]}
        yield f"GPU {gpu['index']}", _words({**gpu, "index": None, "faults": None, "not_read": unread})
    yield "access", _words(page["access"])
    yield "terminal", _words(page["terminal"])
    yield from (("python", _words(python)) for python in page["pythons"])
    yield "files", _words(page["files"])
    if page["changed_settings"]:
        yield "settings", f"not at their defaults: {', '.join(page['changed_settings'])}"


def _words(facts: Mapping[str, Any]) -> str:
    """Return facts with their names in words, those that are unknown left out."""
    return " · ".join(_word(name, value) for name, value in facts.items() if value not in (None, (), [], {}))


def _word(name: str, value: Any) -> str:
    plain = name.replace("_", " ")
    if isinstance(value, bool):
        return f"{plain} {'yes' if value else 'no'}"
    if name.endswith("_bytes"):
        return f"{plain.removesuffix(' bytes')} {format_gib(value, digits=2)} GiB"
    if name.endswith("_seconds"):
        return f"{plain.removesuffix(' seconds')} in {value:.2f} s"
    if isinstance(value, Mapping):
        return f"{plain} {', '.join(f'{key} {each}' for key, each in value.items())}"
    if isinstance(value, list | tuple):
        each = (", ".join(map(str, part.values())) if isinstance(part, Mapping) else part for part in value)
        return f"{plain} {'; '.join(each)}"
    return f"{plain} {value}"


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
