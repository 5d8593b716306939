"""``vramtop history``: list and forget the runs that were measured."""

import argparse
import time
from collections.abc import Iterator, Sequence

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.gpu_catalogue import match_nvml_name
from vramtop.estimator.learning.measurement import Measurement
from vramtop.estimator.learning.measurement_json import measurement_to_json
from vramtop.monitor.history.history import History

from ...draw.text_output import TextOutput, detect_output, format_table, truncate
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


_STATES = {"out_of_memory": "OOM"}
_SOURCES = {"readings": "NVML", "accounting": "driver", "probe": "probe", "measure": "measure", None: "-"}
_RUN_DIGITS = 8
_HEAD = ("RUN", "LAST SEEN", "STATE", "MODEL", "BATCH", "CARD", "SEEN GiB", "EXPECTED", "ERROR", "BY")
_ALIGNED = "<<<<<<>>><"
_DROPPED = (9, 7, 5)
"""Columns that a narrow terminal does without, the first first: who saw it, what was expected, the card."""


def history_lines(found: Sequence[Measurement], output: TextOutput) -> Iterator[str]:
    """Yield a table of measured runs, the newest first, and how far they lie from what was predicted."""
    if not found:
        yield from output.wrapped(
            "no runs have been measured yet: the dashboard and vramtop run measure the runs of known jobs, and "
            "vramtop measure runs real steps of a job"
        )
        return
    rows, aligned = [_HEAD, *map(_row, found)], _ALIGNED
    lines = [output.text(line) for line in format_table(rows, aligned)]
    if output.unlimited_width:
        yield from lines
        return
    for at in _DROPPED:
        if max(map(len, lines)) <= output.width:
            break
        rows = [(*row[:at], *row[at + 1 :]) for row in rows]
        aligned = aligned[:at] + aligned[at + 1 :]
        lines = [output.text(line) for line in format_table(rows, aligned)]
    yield from (truncate(line, output.width) for line in lines)


def _row(measurement: Measurement) -> tuple[str, ...]:
    training, parallel = measurement.job.training, measurement.job.parallel
    batch = f"{training.micro_batch}x{training.sequence_length}"
    if parallel.world_size > 1:
        batch = f"{batch} {parallel.strategy} {parallel.world_size}"
    seen, predicted = measurement.observed.device_bytes, measurement.predicted[-1] if measurement.predicted else None
    expected = predicted.device_bytes if predicted else None
    error = "-" if seen is None or not expected else f"{100 * (seen - expected) / expected:+.1f} %"
    return (
        measurement.run[:_RUN_DIGITS],
        time.strftime("%m-%d %H:%M", time.localtime(measurement.time)),
        _STATES.get(measurement.state, measurement.state),
        measurement.model[:20],
        batch,
        _card(measurement.card),
        format_gib(seen),
        format_gib(expected),
        error,
        _SOURCES[measurement.observed.device_source],
    )


def _card(name: str | None) -> str:
    found = match_nvml_name(name) if name else None
    return found.label[:12] if found else (name or "-").removeprefix("NVIDIA ")[:12]
