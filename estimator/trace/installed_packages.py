"""What the Python that runs a job has: versions of libraries, and how its torch was built; asked in a worker."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from ..common.errors import CannotTellError
from .worker_process import Worker


class InstalledPackages(msgspec.Struct, frozen=True, kw_only=True):
    """What is installed."""

    python: str
    """Version."""
    executable: str
    versions: dict[str, str]
    """By distribution; those that are not there are left out."""
    modules: tuple[str, ...]
    """Those asked about that can be found; none was imported."""
    wishes: tuple[str, ...]
    """Requirements of the distributions asked about, such as ``accelerate>=1.1.0; extra == "accelerate"``."""


class TorchBuild(msgspec.Struct, frozen=True, kw_only=True):
    """How torch was built."""

    version: str | None = None
    """None: it cannot be imported; ``problem`` says why."""
    cuda: str | None = None
    """Of the toolkit, such as ``12.8``; None: built without CUDA."""
    hip: str | None = None
    """Of ROCm; None: built without."""
    architectures: tuple[str, ...] | None = None
    """``sm_80``: machine code; ``compute_90``: PTX, which newer cards compile. None: it does not say."""
    problem: str | None = None
    """Why it cannot be imported."""


_Answer = TypeVar("_Answer", InstalledPackages, TorchBuild)


def installed_packages(
    python: Path,
    *,
    distributions: Sequence[str],
    modules: Sequence[str] = (),
    wishes_of: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    timeout: float = 30,
) -> InstalledPackages:
    """Which of these an interpreter has.

    Args:
        python: the interpreter.
        distributions: names as on PyPI.
        modules: names as they are imported.
        wishes_of: distributions whose own requirements are wanted.
        environ: the job's environment; this process's by default.
        timeout: seconds.

    Raises:
        CannotTellError: it does not run, or not in time.
    """
    request = {
        "op": "packages",
        "distributions": list(distributions),
        "modules": list(modules),
        "wishes_of": list(wishes_of),
    }
    return _ask(python, request, InstalledPackages, environ, timeout)


def torch_build(python: Path, *, environ: Mapping[str, str] | None = None, timeout: float = 60) -> TorchBuild:
    """How an interpreter's torch was built: torch is imported there, CUDA is not initialised.

    Raises:
        CannotTellError: the interpreter does not run, or not in time.
    """
    return _ask(python, {"op": "torch"}, TorchBuild, environ, timeout)


def _ask(
    python: Path, request: Mapping[str, object], kind: type[_Answer], environ: Mapping[str, str] | None, timeout: float
) -> _Answer:
    with Worker(python, environ=environ) as worker:
        message = worker.request(request, timeout)
    try:
        return msgspec.convert(message, kind)
    except msgspec.ValidationError as error:
        raise CannotTellError(f"the worker's answer is not understood: {error}") from None
