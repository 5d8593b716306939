"""A training program as it is started, with everything known about where it runs: the input of every reader."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ..source.evidence import FindingCollector
from ..source.filesystem_view import FilesystemView
from ..source.settings import SettingsLayer
from .launch import Launch


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A training program to read."""

    launch: Launch
    """The program's own command line; for a worker, the worker's."""
    launcher: Launch
    """The command line of the launcher that started it, whose flags a worker lacks; otherwise equal to ``launch``."""
    environ: Mapping[str, str]
    filesystem: FilesystemView
    """The file system in which the program's paths are resolved."""
    versions: Mapping[str, str]
    """Installed versions by distribution, where known."""
    beside_python: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Versions installed for the Python that a typed line names, which need not be the one that will run it."""
    findings: FindingCollector
    """Collects what is read."""
    reported: SettingsLayer = msgspec.field(default_factory=dict)
    """Settings that the running program reports itself, by transformers' names."""
    pid: int | None = None
    """The running program's pid in its own pid namespace; None: it is not running."""
    started_at: float | None = None
    """When it started, in Unix seconds; None: it is not running and has written no files."""
    self_started_ranks: int | None = None
    """Ranks that it started itself, without a launcher; None: it started none, or the number is unknown."""
    config_file: Path | None = None
    """A configuration file that was given by itself, without a launch line."""
