"""``vramtop history``: list, export and forget the runs that were measured."""

import argparse
import csv
import io
import json
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.private_files import write_private
from vramtop.estimator.learning.measurement import Measurement, measurement_to_json
from vramtop.monitor.history.history import Choice, History

from ...draw.text_output import detect_output
from ...reports.history_text import history_lines
from ..json_text import json_text

if TYPE_CHECKING:
    from ..json_types import ExportedJson, ForgottenJson, HistoryJson

_UNITS = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_MAX_AGE_DIGITS = 6
"""Digits of a time ago at most; a longer number is a mistake, and would overflow."""
_MIN_RUN_DIGITS = 4
"""Digits by which a run is named at least; fewer would often mean several."""


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print, export or remove the chosen runs; exit code 0.

    Raises:
        InputError: the options make no choice, or the file exists or cannot be written.
        CannotTellError: the history cannot be read or written.
    """
    del launch
    choice, history = _choice(options), History()
    if options.forget:
        return _forget(options, choice, history)
    found = history.list(choice)
    if options.run and not found:
        raise InputError(f"there is no measured run {options.run}; vramtop history lists them")
    if options.export is not None:
        return _export(options, found)
    if options.json:
        listed: HistoryJson = {"schema": 1, "runs": [measurement_to_json(each) for each in found]}
        print(json_text(listed))
        return 0
    print("\n".join(history_lines(found, detect_output(ascii_only=options.ascii), chosen=choice != Choice())))
    return 0


def _choice(options: argparse.Namespace) -> Choice:
    if options.run is not None and (len(options.run) < _MIN_RUN_DIGITS or not options.run.isalnum()):
        raise InputError(
            f"{options.run} is not a run; give the first digits from the column RUN, at least {_MIN_RUN_DIGITS}"
        )
    return Choice(
        run=options.run,
        card=options.card,
        model=options.model,
        state=options.status,
        since=None if options.since is None else moment(options.since, "--since"),
        before=None if options.older_than is None else moment(options.older_than, "--older-than"),
    )


def moment(text: str, flag: str) -> float:
    """Return the Unix seconds of a date, or of a time ago such as ``12h``, ``30d`` or ``8w``.

    Raises:
        InputError: it is neither.
    """
    number, unit = text[:-1], text[-1:].lower()
    if unit in _UNITS and number.isdecimal() and len(number) <= _MAX_AGE_DIGITS:
        return time.time() - int(number) * _UNITS[unit]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InputError(f"{flag} {text}: give a date, such as 2026-11-01, or a time ago: 12h, 30d, 8w") from None


def _forget(options: argparse.Namespace, choice: Choice, history: History) -> int:
    if options.export is not None:
        raise InputError("--export and --forget are two steps: export first")
    if choice == Choice() and not options.all:
        raise InputError("--forget needs a run of the list, --older-than 90d, another filter, or --all")
    if choice != Choice() and options.all:
        raise InputError("--all forgets every run; leave out either --all or the filters")
    if options.run and len(history.list(choice)) > 1:
        raise InputError(f"several runs begin with {options.run}; give more digits")
    count = history.forget(choice)
    if options.run and not count:
        raise InputError(f"there is no measured run {options.run}; vramtop history lists them")
    if options.json:
        forgotten: ForgottenJson = {"schema": 1, "forgotten": count}
        print(json_text(forgotten))
    else:
        print(f"{count} measured run{'' if count == 1 else 's'} forgotten")
    return 0


def _export(options: argparse.Namespace, found: Sequence[Measurement]) -> int:
    name = options.export
    if name == "-":
        sys.stdout.write(_json_lines(found))
        return 0
    if not name.endswith((".csv", ".jsonl")):
        raise InputError(f"--export {name}: give a file that ends in .jsonl (JSON lines) or .csv, or - for JSON lines")
    text = _csv(found) if name.endswith(".csv") else _json_lines(found)
    try:
        write_private(Path(name), text.encode(), new=True)
    except FileExistsError:
        raise InputError(f"--export {name}: it already exists; give another name") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{name}: cannot be written: {reason}") from None
    if options.json:
        exported: ExportedJson = {"schema": 1, "file": str(Path(name)), "runs": len(found)}
        print(json_text(exported))
    else:
        print(f"{name}: {len(found)} measured run{'' if len(found) == 1 else 's'}")
    return 0


def _json_lines(found: Sequence[Measurement]) -> str:
    return "".join(f"{json.dumps(measurement_to_json(each))}\n" for each in found)


def _csv(found: Sequence[Measurement]) -> str:
    """Return a row per run and method, with the figures in bytes."""
    rows = [_row(each, predicted) for each in found for predicted in each.predicted]
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(measurement: Measurement, predicted: Any) -> dict[str, Any]:
    seen, training, parallel = measurement.observed, measurement.job.training, measurement.job.parallel
    return {
        "run": measurement.run,
        "time": datetime.fromtimestamp(measurement.time).astimezone().isoformat(timespec="seconds"),
        "state": measurement.state,
        "model": measurement.model,
        "card": measurement.card,
        "driver": measurement.driver,
        "torch": measurement.versions.get("torch"),
        "framework": training.framework,
        "strategy": parallel.strategy,
        "ranks": parallel.world_size,
        "micro_batch": training.micro_batch,
        "sequence_length": training.sequence_length,
        "precision": training.precision,
        "optimizer": training.optimizer,
        "method": predicted.method,
        **{
            f"predicted_{name}": getattr(predicted, name)
            for name in ("allocated_bytes", "reserved_bytes", "device_bytes")
        },
        **{f"predicted_{name}_bytes": size for name, size in predicted.components.items()},
        "seen_allocated_bytes": seen.allocated_bytes,
        "seen_reserved_bytes": seen.reserved_bytes,
        "seen_device_bytes": seen.device_bytes,
        "seen_by": seen.device_source,
    }
