"""The JSON of commands that write a file or serve something, and the head of a recording."""

from typing import Annotated, Any, Literal, TypedDict

from vramtop.estimator.common.fields_of import FieldsOf
from vramtop.monitor.snapshot.snapshot import Source

from .versioned import Versioned


class SnapshotJson(Versioned):
    """The memory snapshot that a process has written."""

    pid: int
    """The process."""
    file: str
    """Path of the snapshot."""
    bytes: int
    """Size of the file in bytes."""


class RecordJson(Versioned):
    """The recording that was made."""

    file: str
    """Path of the recording."""
    snapshots: int
    """Number of readings in it."""


class ReportJson(Versioned):
    """The report that was written."""

    file: str | None
    """Path of the HTML file; null: it was printed."""


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
