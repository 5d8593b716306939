"""``vramtop wait JOB``: wait until a job fits on GPUs of this machine; the same as ``vramtop fit JOB --wait``."""

from .fit import run

__all__ = ["run"]
