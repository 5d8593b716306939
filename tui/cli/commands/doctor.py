"""``vramtop doctor``: one page about this machine for a bug report, problems first."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.errors import ExitCode
from vramtop.monitor.doctor.report import DoctorReport, Issue, collect_report, find_issues
from vramtop.monitor.storage.settings.in_force import DEFAULT

from ...draw.text_output import detect_output
from ...reports.doctor_text import doctor_lines
from ...tty.terminal_facts import TerminalFacts, terminal_facts, terminal_issues
from ..json_text import json_text
from ..progress import Progress

if TYPE_CHECKING:
    from vramtop.monitor.storage.settings.in_force import SettingsInForce

    from ..json_types import DoctorJson

_MAX_WIDTH = 80
"""Columns of the page, so that it can be read wherever it is pasted."""


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the page; exit code 0, or 3 if the driver cannot be used or does not answer.

    Raises:
        InputError: the interpreter of ``--python`` does not exist.
    """
    del launch
    output = detect_output(ascii_only=options.ascii)
    with Progress(quiet=options.json) as progress:
        progress("examining the driver and the Python interpreters")
        page = collect_report(os.environ, python=options.python)
    terminal = terminal_facts(os.environ, page.system, output)
    changed = _changed_settings(options.settings)
    problems = (*find_issues(page), *terminal_issues(terminal), *_settings_issues(len(options.settings.problems)))
    if options.json:
        print(json_text(_to_json(page, terminal, problems, changed)))
    else:
        narrow = replace(output, width=min(output.width, _MAX_WIDTH))
        print("\n".join(doctor_lines(page, terminal, problems, narrow, changed_settings=changed)))
    sys.stdout.flush()
    return ExitCode.CANNOT_TELL if page.driver.problem or page.driver.hangs else ExitCode.DONE


def _settings_issues(count: int) -> tuple[Issue, ...]:
    """Return that there is something wrong with the settings; the sentences about it may name hosts."""
    if not count:
        return ()
    what = "something is" if count == 1 else f"{count} things are"
    return (Issue("warning", f"{what} wrong in the settings; vramtop config says what"),)


def _changed_settings(settings: "SettingsInForce") -> list[str]:
    """Return the names of settings that are not at their defaults; their values may name hosts."""
    return sorted(name for name, origin in settings.origins.items() if origin != DEFAULT)


def _to_json(
    page: DoctorReport, terminal: TerminalFacts, problems: Sequence[Issue], changed: list[str]
) -> "DoctorJson":
    facts = msgspec.to_builtins(page)
    gpus = facts["driver"].pop("gpus")
    return {
        "schema": 1,
        "findings": msgspec.to_builtins(tuple(problems)),
        "system": facts["system"],
        "driver": facts["driver"],
        "gpus": gpus,
        "access": facts["access"],
        "terminal": msgspec.to_builtins(terminal),
        "pythons": facts["pythons"],
        "files": facts["files"],
        "changed_settings": changed,
    }
