"""The environment in which Python processes start the probe automatically."""

import os
from collections.abc import Mapping
from pathlib import Path

BOOTSTRAP = Path(__file__).parent / "bootstrap"
"""The folder whose ``sitecustomize`` starts the probe."""


def probed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the probe's folder once, at the front of PYTHONPATH, whose other entries stay."""
    before = environ.get("PYTHONPATH", "")
    others = [entry for entry in before.split(os.pathsep) if entry != str(BOOTSTRAP)] if before else []
    return {**environ, "PYTHONPATH": os.pathsep.join([str(BOOTSTRAP), *others])}
