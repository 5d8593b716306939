"""The environment in which Python processes start the probe automatically."""

import os
from collections.abc import Mapping
from pathlib import Path

BOOTSTRAP = Path(__file__).parent / "bootstrap"
"""The folder whose ``sitecustomize`` starts the probe."""
SNAPSHOT_VARIABLE = "VRAMTOP_SNAPSHOT_ON_OOM"
"""The folder for memory snapshots of processes that run out of GPU memory; ``sitecustomize`` reads it."""


def probed_environment(environ: Mapping[str, str], *, snapshot_folder: str | None = None) -> dict[str, str]:
    """Return the environment with the probe's folder once, at the front of PYTHONPATH, whose other entries stay.

    Args:
        environ: of the command.
        snapshot_folder: where the command's processes write a memory snapshot when they run out of GPU memory; None:
            they write none.
    """
    before = environ.get("PYTHONPATH", "")
    others = [entry for entry in before.split(os.pathsep) if entry != str(BOOTSTRAP)] if before else []
    snapshots = {SNAPSHOT_VARIABLE: snapshot_folder} if snapshot_folder else {}
    return {**environ, **snapshots, "PYTHONPATH": os.pathsep.join([str(BOOTSTRAP), *others])}


def without_probe(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that a command had before ``probed_environment``."""
    others = [each for each in environ.get("PYTHONPATH", "").split(os.pathsep) if each not in ("", str(BOOTSTRAP))]
    left = {name: value for name, value in environ.items() if name not in ("PYTHONPATH", SNAPSHOT_VARIABLE)}
    return {**left, "PYTHONPATH": os.pathsep.join(others)} if others else left
