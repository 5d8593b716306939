"""A training program as it is started, and all that is known of where it runs: what every reader starts from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..source.evidence import FindingCollector
from ..source.filesystem_view import FilesystemView
from ..source.settings import SettingsLayer
from .launchers import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is to be read."""

    launch: Launch
    """Of the program itself; of a worker, its own command line."""
    launcher: Launch
    """Of the launcher that started it, whose own flags a worker does not have; else the same as ``launch``."""
    environ: Mapping[str, str]
    filesystem: FilesystemView
    """Where the program's paths lead."""
    versions: Mapping[str, str]
    """Installed versions by distribution, as far as they are known."""
    findings: FindingCollector
    """Where findings are put."""
    reported: SettingsLayer = field(default_factory=dict)
    """What the running program says of itself, by transformers' names."""
    pid: int | None = None
    """Of the running program, as it knows itself (in its own pid namespace); None: it does not run."""
    started_at: float | None = None
    """When it started, in Unix seconds; None: it does not run, and has written nothing."""
    self_started_ranks: int | None = None
    """Ranks that it has started itself, without a launcher; None: it has not, or nobody knows."""
    config_file: Path | None = None
    """A configuration file that was given by itself, without a launch line."""
