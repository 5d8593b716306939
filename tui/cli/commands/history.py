"""``vramtop history``: list and forget the runs that were measured."""

import argparse
from collections.abc import Sequence

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.learning.measurement_json import measurement_to_json
from vramtop.monitor.history.history import History

from ...draw.text_output import detect_output
from ...reports.history_text import history_lines
from ..json_text import json_text

_MIN_RUN_DIGITS = 4
"""Digits by which a run is named at least; fewer would often mean several."""


def run(options: argparse.Namespace, _: Sequence[str] | None) -> int:
    """Print or remove the chosen runs; exit code 0.

    Raises:
        InputError: the options make no choice, or there is no such run.
        CannotTellError: the history cannot be read or written.
    """
    name, history = options.run, History()
    if name is not None and (len(name) < _MIN_RUN_DIGITS or not name.isalnum()):
        raise InputError(f"{name} is not a run; give the first digits from the column RUN, at least {_MIN_RUN_DIGITS}")
    if options.forget and not (name or options.all):
        raise InputError("--forget needs a run of the list, or --all")
    if options.all and name:
        raise InputError("--all forgets every run; leave out either --all or the run")
    found = history.list(name or "")
    if name and not found:
        raise InputError(f"there is no measured run {name}; vramtop history lists them")
    if options.forget:
        if name and len(found) > 1:
            raise InputError(f"several runs begin with {name}; give more digits")
        history.forget(found)
        said = f"{len(found)} measured run{'' if len(found) == 1 else 's'} forgotten"
        print(json_text({"schema": 1, "forgotten": len(found)}) if options.json else said)
        return 0
    if options.json:
        print(json_text({"schema": 1, "runs": [measurement_to_json(each) for each in found]}))
        return 0
    print("\n".join(history_lines(found, detect_output(ascii_only=options.ascii))))
    return 0
