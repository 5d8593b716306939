"""The JSON of ``vramtop preflight``."""

from typing import Annotated, Any, Literal, TypedDict

from vramtop.estimator.common.fields_of import FieldsOf
from vramtop.monitor.preflight.check import CheckJson

from .versioned import Versioned


class PythonJson(TypedDict):
    """The interpreter that the job runs in."""

    path: str
    """Its path."""
    origin: str
    """How it was found."""


class PreflightJson(Versioned):
    """Everything that a job needs, checked."""

    job: str
    """Label of the job."""
    result: Literal["pass", "failure", "unknown"]
    """`pass`: no check fails; `failure`: one does; `unknown`: a decisive check came to no conclusion."""
    python: PythonJson
    """The interpreter that the job runs in."""
    checks: list[Annotated[dict[str, Any], FieldsOf(CheckJson)]]
    """The checks, in their order."""
    notes: list[str]
    """What was assumed while the job was read, one sentence each."""
