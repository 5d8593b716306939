"""``vramtop report``: write a recording, or measured runs, as one HTML file, and its plots as files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.limits import LimitError, decode_json
from vramtop.estimator.common.private_files import write_private
from vramtop.estimator.common.untrusted_files import open_file
from vramtop.estimator.common.version import version_number

from ...html_report.page import history_page, history_plot, save_plots
from ...html_report.recording_page import recording_page, recording_plots
from ..progress import Progress

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from vramtop.estimator.learning.measurement import Measurement

    from ...html_report.page import Plot
    from ..json_types import ReportJson

_OWN_HISTORY = "history"
"""The word for the user's own measured runs."""
_SQLITE = b"SQLite format 3\0"
_MAX_EXPORT_BYTES = 2**27
"""Largest export of measured runs, which is read whole."""
_MAX_LINE_BYTES = 2**20
"""Longest first line, by which an export is told from a recording."""
_RECORDING_ENDINGS = (".gz", ".jsonl")


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Write the report and print where it is; exit code 0.

    Raises:
        InputError: the file is neither a recording nor a history, or the report exists or cannot be written.
        CannotTellError: the history cannot be read.
    """
    del launch
    out = _out(options)
    with Progress(quiet=options.json) as progress:
        progress(f"reading {options.source}")
        text, plots = _report(options.source)
    folder = options.plots
    files = [] if folder is None else save_plots(plots, Path(folder), overwrite=options.overwrite)
    if out is None:
        sys.stdout.write(text)
    else:
        _write(out, text, overwrite=options.overwrite)
    if options.json:
        shown: ReportJson = {
            "schema": 1,
            "file": None if out is None else str(out),
            "plots": [str(path) for path in files],
        }
        print(json.dumps(shown), file=sys.stderr if out is None else sys.stdout)
    elif out is not None:
        plotted = f", and {len(files)} plot{'' if len(files) == 1 else 's'} in {folder}" if files else ""
        print(f"{out}: open it in a browser{plotted}")
    return 0


def _report(source: str) -> tuple[str, list[Plot]]:
    from vramtop.monitor.history.history import corrected_by_others

    made_by = f"vramtop {version_number() or '(not installed)'}"
    runs = _measured_runs(source)
    if runs is not None:
        name = "your history" if source == _OWN_HISTORY else Path(source).name
        page = history_page(runs, name, corrected=corrected_by_others(runs), made_by=made_by)
        return page, [history_plot(runs)]
    from vramtop.monitor.sources.recorded import read_recorded

    from ..estimators import quick_estimate

    recorded = read_recorded(Path(source), quick_estimate)
    return recording_page(recorded, made_by=made_by), recording_plots(recorded)


def _measured_runs(source: str) -> tuple[Measurement, ...] | None:
    """Return the runs of a history; None: it is something else, and may be a recording."""
    from vramtop.monitor.history.history import History

    if source == _OWN_HISTORY:
        return History().list()
    path = Path(source)
    try:
        with open_file(path) as file:
            begin = file.read(len(_SQLITE))
            if begin == _SQLITE:
                return History(path).list()
            line = begin + file.readline(_MAX_LINE_BYTES)
            if not _is_measured_run(line):
                return None
            text = line + file.read(_MAX_EXPORT_BYTES)
            if file.read(1):
                raise InputError(
                    f"{path} is larger than {_MAX_EXPORT_BYTES // 2**20} MiB, too large for an export of runs"
                )
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return _exported_runs(path, text)


def _is_measured_run(line: bytes) -> bool:
    try:
        found = decode_json(line)
    except LimitError:
        return False
    return isinstance(found, dict) and "run" in found and "observed" in found


def _exported_runs(path: Path, text: bytes) -> tuple[Measurement, ...]:
    from vramtop.estimator.learning.measurement import measurement_from_json

    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            found.append(measurement_from_json(decode_json(line)))
        except (InputError, LimitError) as error:
            raise InputError(
                f"{path}, line {number}: not a measured run from vramtop history --export: {error}"
            ) from None
    return tuple(sorted(found, key=lambda each: each.time, reverse=True))


def _out(options: argparse.Namespace) -> Path | None:
    """Return the file to write; None: standard output."""
    if options.out == "-":
        return None
    if options.out is not None:
        path = Path(options.out)
    else:
        name = "vramtop-history" if options.source == _OWN_HISTORY else Path(options.source).name
        for ending in _RECORDING_ENDINGS:
            name = name.removesuffix(ending)
        path = Path(f"{name}.html")
    if os.path.lexists(path) and not options.overwrite:
        raise InputError(f"{path} already exists; name another file with --out, or replace it with --overwrite")
    return path


def _write(path: Path, text: str, *, overwrite: bool) -> None:
    """Write the file whole, or not at all."""
    try:
        write_private(path, text.encode(), new=not overwrite)
    except FileExistsError:
        raise InputError(f"{path} already exists; name another file with --out, or replace it") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
