"""The measured runs as a table for a terminal."""

import time
from collections.abc import Iterator, Sequence

from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.gpu_catalogue import match_nvml_name
from vramtop.estimator.learning.measurement import Measurement

from ..draw.text_output import TextOutput, format_table, truncate

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
