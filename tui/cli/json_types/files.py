"""The JSON of commands that write or serve something, and of the lines of recordings and streams."""

from typing import Annotated, Any, Literal, TypedDict

from vramtop.estimator.budget import FieldsOf
from vramtop.monitor.snapshot import Source

from .version import Versioned


class RecordJson(Versioned):
    """The recording that was made."""

    file: str
    """Path of the recording."""
    snapshots: int
    """Number of readings in it."""


class ReportJson(Versioned):
    """The report that was written."""

    file: str | None
    """Path of the HTML file; null: the report is on standard output, and this on standard error."""
    plots: list[str]
    """Paths of the plots."""


class ServeJson(Versioned):
    """Where the dashboard is served."""

    address: str
    """The address with its secret token: whoever has it sees the dashboard."""


class ExportJson(Versioned):
    """Where the metrics are served."""

    url: str
    """Address that a Prometheus scrapes."""


class RecordingHeadJson(TypedDict):
    """The first line of a recording; each further line is a reading."""

    vramtop_recording: Literal[1]
    """Version of the format of recordings; a later one only if a field changes its meaning."""
    source: Annotated[dict[str, Any], FieldsOf(Source)]
    """Where the readings are from."""
    time: float
    """Unix seconds of the first reading."""


class StreamLineJson(TypedDict):
    """A host at one moment, a line of `vramtop stream`: unknown figures, and fields at their defaults, are left out."""

    schema: Literal[1]
    """Version of this format, the first key of the line; a later one only if a field changes its meaning."""
