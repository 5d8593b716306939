"""The JSON of a measured run: its fields, and of its job what is kept (``vramtop history --json``)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ..common.errors import InputError
from ..common.untrusted_files import check_nesting
from ..job.job_file.changes import job_from_mapping
from .kept_job import KEPT, settings_digest
from .measurement import Measurement


def measurement_to_json(measurement: Measurement) -> dict[str, Any]:
    """Return plain dicts and lists; what is unknown is left out."""
    job, found = measurement.job, msgspec.to_builtins(measurement)
    return {
        **found,
        "job": {table: {name: getattr(getattr(job, table), name) for name in KEPT[table]} for table in KEPT},
    }


def measurement_from_json(data: Mapping[str, Any]) -> Measurement:
    """Return the measurement that ``measurement_to_json`` wrote; unknown keys are ignored.

    Raises:
        InputError: it is not such data.
    """
    try:
        facts = msgspec.convert(data, dict[str, Any])
        job = msgspec.convert(facts.get("job"), dict[str, Any])
        check_nesting(job)
        read = msgspec.convert({"settings": "", **facts, "job": {}}, Measurement)
        hidden = [msgspec.convert(facts["hidden"], str)] if facts.get("hidden") else []
    except (msgspec.ValidationError, ValueError) as error:
        raise InputError(f"this is not a measurement that vramtop wrote: {error}") from None
    kept = job_from_mapping(job, where="the measurement's job")
    # earlier versions kept the settings themselves, and a digest of those that are names
    return msgspec.structs.replace(read, job=kept, settings=read.settings or settings_digest(kept, *hidden))
