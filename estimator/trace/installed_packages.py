"""Library versions of the Python that runs a job, and the build of its torch; a worker reads both."""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from .worker_process import Worker, convert_answer

_BUILT_BY_NAME = re.compile(r"((torchvision|timm)/)?[a-z][a-z0-9_]*(\.[a-z0-9_]+)?")


class InstalledPackages(msgspec.Struct, frozen=True, kw_only=True):
    """Installed distributions and modules."""

    python: str
    """Version."""
    versions: dict[str, str]
    """By distribution; those that are not installed are left out."""
    modules: tuple[str, ...]
    """Requested modules that can be found; none was imported."""
    requirements: tuple[str, ...]
    """Requirements of the requested distributions, such as ``accelerate>=1.1.0; extra == "accelerate"``."""


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """A Python that has torch and transformers."""

    path: Path
    torch: str
    """Version."""
    transformers: str
    """Version."""
    peft: str | None = None
    """Version; None: not installed."""


class TorchBuild(msgspec.Struct, frozen=True, kw_only=True):
    """Build of torch."""

    version: str | None = None
    """None: it cannot be imported; ``problem`` is the reason."""
    cuda: str | None = None
    """Version of the CUDA toolkit, such as ``12.8``; None: built without CUDA."""
    hip: str | None = None
    """Version of ROCm; None: built without it."""
    architectures: tuple[str, ...] | None = None
    """``sm_80``: machine code; ``compute_90``: PTX, which newer GPUs compile. None: unknown."""
    problem: str | None = None
    """Reason why it cannot be imported."""


def installed_packages(
    python: Path, *, environ: Mapping[str, str] | None = None, timeout: float = 30, **names: Sequence[str]
) -> InstalledPackages:
    """Return what an interpreter has of what is asked for, as ``packages_in`` does.

    Args:
        python: the interpreter.
        environ: the job's environment; None: this process's.
        timeout: seconds.
        names: as ``packages_in`` takes them.

    Raises:
        CannotTellError: it does not run, or not in time.
    """
    with Worker(python, environ=environ) as worker:
        return packages_in(worker, timeout, **names)


def packages_in(worker: Worker, timeout: float, **names: Sequence[str]) -> InstalledPackages:
    """Return what a running worker's interpreter has.

    Args:
        worker: the worker.
        timeout: seconds.
        names: ``distributions`` as on PyPI, ``modules`` by import names, and ``requirements_of`` distributions whose
            own requirements are wanted.
    """
    request = {"op": "packages", **{name: list(each) for name, each in names.items()}}
    return convert_answer(worker.request(request, timeout), InstalledPackages)


def is_built_by_name(name: str) -> bool:
    """Return True for a name as torchvision and timm have them: ``resnet50``, ``timm/resnet50.a1_in1k``."""
    return _BUILT_BY_NAME.fullmatch(name) is not None


@functools.cache
def image_model(name: str, pythons: tuple[Path, ...], *, timeout: float = 30) -> tuple[str, str, Path] | None:
    """Return the name and the module with which torchvision or timm builds a model, and the Python that has it.

    Args:
        name: ``resnet50``, ``vit_base_patch16_224``, ``timm/vit_base_patch16_224.augreg_in21k``.
        pythons: those in which it is searched for; the first one is taken that knows it.
        timeout: seconds for each of them.

    Raises:
        CannotTellError: none of them runs.
    """
    for python in pythons:
        with Worker(python) as worker:
            found = convert_answer(worker.request({"op": "builder", "name": name}, timeout), _Builder)
        if found.module is not None:
            return found.name, found.module, python
    return None


class _Builder(msgspec.Struct, frozen=True):
    """A worker's answer to the request ``builder``."""

    name: str
    module: str | None


def torch_build(python: Path, *, environ: Mapping[str, str] | None = None, timeout: float = 60) -> TorchBuild:
    """Return the build of an interpreter's torch: torch is imported there, CUDA is not initialised.

    Raises:
        CannotTellError: the interpreter does not run, or not in time.
    """
    with Worker(python, environ=environ) as worker:
        return convert_answer(worker.request({"op": "torch"}, timeout), TorchBuild)
