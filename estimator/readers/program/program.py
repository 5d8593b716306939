"""A training program as it is started, and all that is known of where it runs: what every reader starts from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..source.evidence import Notes
from ..source.filesystem_view import Place
from ..source.settings import Layer
from .launchers import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is to be read."""

    launch: Launch
    """Of the program itself; of a worker, its own command line."""
    outer: Launch
    """Of the launcher that started it, whose own flags a worker does not have; else the same as ``launch``."""
    environ: Mapping[str, str]
    place: Place
    """Where the program's paths lead."""
    versions: Mapping[str, str]
    """Installed versions by distribution, as far as they are known."""
    notes: Notes
    """Where findings are put."""
    told: Layer = field(default_factory=dict)
    """What the running program says of itself, by transformers' names."""
    pid: int | None = None
    """Of the running program, as it knows itself (in its own pid namespace); None: it does not run."""
    started: float | None = None
    """When it started, in Unix seconds; None: it does not run, and has written nothing."""
    workers: int | None = None
    """Ranks that it has started itself, without a launcher; None: it has not, or nobody knows."""
    file: Path | None = None
    """A configuration file that was given by itself, without a launch line."""
