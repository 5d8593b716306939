"""``vramtop doctor``: one page about this machine for a bug report, what is wrong first."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from vramtop.estimator.common.errors import InputError
from vramtop.monitor.doctor.issues import Issue, find_issues
from vramtop.monitor.doctor.report import DoctorReport, collect_report

from ...draw.text_output import detect_output
from ...reports.doctor_text import doctor_lines
from ...tty.terminal_facts import TerminalFacts, terminal_facts, terminal_findings
from ..json_text import json_text
from ..progress import Progress

_WIDTH = 80
"""A page that is pasted into a report is read in any window."""
_CANNOT_TELL = 3


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the page; 0, or 3 where the driver cannot be used or does not answer.

    Raises:
        InputError: a launch line is given, or ``--python`` is not there.
    """
    if launch is not None:
        raise InputError("doctor looks at this machine; it takes no launch line")
    terminal = detect_output(ascii_only=options.ascii)
    with Progress(quiet=options.json) as progress:
        progress("asking the driver and the Pythons")
        page = collect_report(os.environ, python=options.python)
    shown = terminal_facts(os.environ, page.system, terminal)
    found = (*find_issues(page), *terminal_findings(shown))
    if options.json:
        print(json_text(_to_json(page, shown, found)))
    else:
        print("\n".join(doctor_lines(page, shown, found, replace(terminal, width=min(terminal.width, _WIDTH)))))
    sys.stdout.flush()
    return _CANNOT_TELL if page.driver.problem or page.driver.hangs else 0


def _to_json(page: DoctorReport, terminal: TerminalFacts, found: Sequence[Issue]) -> dict[str, object]:
    facts = msgspec.to_builtins(page)
    gpus = facts["driver"].pop("gpus")
    return {
        "schema": 1,
        "findings": msgspec.to_builtins(tuple(found)),
        "system": facts["system"],
        "driver": facts["driver"],
        "gpus": gpus,
        "access": facts["access"],
        "terminal": msgspec.to_builtins(terminal),
        "pythons": facts["pythons"],
        "files": facts["files"],
    }
