"""``vramtop report``: write a recording as one HTML file."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.version import version_number
from vramtop.monitor.sources.recorded import read_recorded

from ...html_report.recording_page import recording_page
from ..estimators import quick_estimate
from ..out_file import write_out
from ..progress import Progress

_RECORDING_ENDINGS = (".gz", ".jsonl")


def run(options: argparse.Namespace, _: Sequence[str] | None) -> int:
    """Write the report and print where it is; exit code 0.

    Raises:
        InputError: the file is no recording, or the report exists or cannot be written.
    """
    out = _out(options)
    with Progress(quiet=options.json) as progress:
        progress(f"reading {options.source}")
        recorded = read_recorded(Path(options.source), quick_estimate)
        text = recording_page(recorded, made_by=f"vramtop {version_number() or '(not installed)'}")
    if out is None:
        sys.stdout.write(text)
    else:
        write_out(out, text, overwrite=options.overwrite)
    if options.json:
        shown = {"schema": 1, "file": None if out is None else str(out)}
        print(json.dumps(shown), file=sys.stderr if out is None else sys.stdout)
    elif out is not None:
        print(f"{out}: open it in a browser")
    return 0


def _out(options: argparse.Namespace) -> Path | None:
    """Return the file to write; None: standard output."""
    if options.out == "-":
        return None
    if options.out is not None:
        path = Path(options.out)
    else:
        name = Path(options.source).name
        for ending in _RECORDING_ENDINGS:
            name = name.removesuffix(ending)
        path = Path(f"{name}.html")
    if os.path.lexists(path) and not options.overwrite:
        raise InputError(f"{path} already exists; name another file with --out, or replace it with --overwrite")
    return path
