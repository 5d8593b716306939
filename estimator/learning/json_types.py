"""The JSON of a measured run, key by key (``vramtop history --json``); its schema is made from these types."""

from typing import Annotated, Any, TypedDict

from ..budget import FieldsOf, PlainJob
from .measurement import Observed, Predicted, RunState


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
    """The job without names of the user's: the tables of a job file."""


class MeasurementJson(_Measurement, total=False):
    """One run: its job, its GPU, what was predicted, and what was seen. What is unknown is left out."""

    hidden: str
    """Digest of those settings that are not kept because they are names (patterns, classes); absent: there are none."""
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
