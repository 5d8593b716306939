"""Converts a measurement to plain data and back."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from ..common import InputError, check_nesting
from ..job import job_from_mapping, job_to_mapping
from .measurement import Measurement, Observed, Predicted, RunState

if TYPE_CHECKING:
    from .json_types import MeasurementJson


def measurement_to_json(measurement: Measurement) -> "MeasurementJson":
    """Return plain dicts and lists; what is unknown is left out."""
    found: MeasurementJson = {
        "run": measurement.run,
        "time": measurement.time,
        "state": measurement.state,
        "model": measurement.model,
        "shape": measurement.shape,
        "observed": _known(asdict(measurement.observed)),
        "predicted": [_known(asdict(each)) for each in measurement.predicted],
        "job": job_to_mapping(measurement.job),
    }
    if measurement.hidden:
        found["hidden"] = measurement.hidden
    if measurement.card is not None:
        found["card"] = measurement.card
    if measurement.card_bytes is not None:
        found["card_bytes"] = measurement.card_bytes
    if measurement.driver is not None:
        found["driver"] = measurement.driver
    if measurement.machine:
        found["machine"] = measurement.machine
    if measurement.versions:
        found["versions"] = dict(measurement.versions)
    if measurement.command is not None:
        found["command"] = measurement.command
    if measurement.allocator:
        found["allocator"] = measurement.allocator
    return found


def measurement_from_json(data: Mapping[str, Any]) -> Measurement:
    """Return the measurement that ``measurement_to_json`` wrote; unknown keys are ignored.

    Raises:
        InputError: it is not such data.
    """
    try:
        read = msgspec.convert(data, _Measurement)
        check_nesting(read.job)
    except (msgspec.ValidationError, ValueError) as error:
        raise InputError(f"this is no measurement as vramtop writes it: {error}") from None
    facts = {name: getattr(read, name) for name in read.__struct_fields__ if name != "job"}
    return Measurement(**facts, job=job_from_mapping(read.job, where="the measurement's job"))


def _known(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value is not None}


class _Measurement(msgspec.Struct, frozen=True):
    run: str
    job: dict[str, Any]
    model: str
    shape: str
    predicted: tuple[Predicted, ...]
    observed: Observed
    state: RunState
    time: float
    hidden: str = ""
    card: str | None = None
    card_bytes: int | None = None
    driver: str | None = None
    machine: str = ""
    versions: dict[str, str] = {}
    command: str | None = None
    allocator: str = ""
