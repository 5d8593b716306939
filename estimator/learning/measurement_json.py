"""The JSON of a measured run, key by key (``vramtop history --json``); its schema is made from these types."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, TypedDict, cast

import msgspec

from ..budget import PlainJob
from ..common.errors import InputError
from ..common.fields_of import FieldsOf
from ..common.untrusted_files import check_nesting
from ..job.job_file.changes import job_from_mapping
from .kept_job import KEPT, settings_digest
from .measurement import Measurement, Observed, Predicted, RunState


class _Measurement(TypedDict):
    run: str
    """Digest that identifies the run: the same from every vramtop that follows it."""
    time: float
    """Unix seconds at which its figures were last seen."""
    state: RunState
    """State of the run whose peaks these are: at its final level of memory, still running (`steady`) or over
    (`ended`); one that ended before it reached that level (`short`); one that leaked (`growing`), or that failed
    (`out_of_memory`)."""
    model: str
    """The model in words: its public name where vramtop knows it, else family and size."""
    shape: str
    """Digest of the model's architecture."""
    observed: Annotated[dict[str, Any], FieldsOf(Observed, only_known=True)]
    """The highest memory that was seen."""
    predicted: list[Annotated[dict[str, Any], FieldsOf(Predicted, only_known=True)]]
    """Prediction of each method that estimated the job."""
    job: PlainJob
    """What is kept of the job, without names of the user's: the tables of a job file."""
    settings: str
    """Digest of the settings on which a step depends."""


class MeasurementJson(_Measurement, total=False):
    """One run: its job, its GPU, what was predicted, and what was seen. What is unknown is left out."""

    card: str
    """The GPU's name, as NVML gives it; absent: unknown."""
    card_bytes: int
    """Memory of the GPU in bytes; absent: unknown."""
    driver: str
    """Version of the driver; absent: unknown."""
    machine: str
    """Digest that identifies the machine; absent: unknown."""
    versions: dict[str, str]
    """Versions of libraries in the run, by name: torch, transformers, ...; absent: unknown."""
    command: str
    """Digest of the command line; absent: unknown."""
    allocator: str
    """The allocator's settings (`PYTORCH_CUDA_ALLOC_CONF`); absent: its defaults."""


def measurement_to_json(measurement: Measurement) -> "MeasurementJson":
    """Return plain dicts and lists; what is unknown is left out."""
    job = measurement.job
    given = {name: getattr(measurement, name) for name in MeasurementJson.__annotations__}
    found = {name: value for name, value in given.items() if value or name in MeasurementJson.__required_keys__}
    found["observed"] = _known(asdict(measurement.observed))
    found["predicted"] = [_known(asdict(each)) for each in measurement.predicted]
    found["job"] = {table: {name: getattr(getattr(job, table), name) for name in KEPT[table]} for table in KEPT}
    return cast("MeasurementJson", found)


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
    return replace(read, job=kept, settings=read.settings or settings_digest(kept, *hidden))


def _known(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value is not None}
