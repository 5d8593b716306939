"""A model's parameters counted on the model itself, built without storage in a worker process; kept on disk."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from platformdirs import user_cache_dir

from .architecture import complete_config
from .errors import CannotTellError
from .interpreters import choose_interpreter
from .inventory import Inventory
from .job import Task
from .models import ResolvedModel
from .parameter_roles import Kind, NamedShape, assign_roles
from .worker_cache import read_cached, write_cached
from .worker_process import Worker

_FORMAT = 2
"""Of the files in the cache; another number there is a miss."""


def exact_inventory(
    resolved: ResolvedModel,
    task: Task,
    *,
    python: str | None = None,
    timeout: float = 120,
    environ: Mapping[str, str] | None = None,
    cache: Path | None = None,
) -> Inventory:
    """Every parameter of the model as the installed transformers builds it.

    Args:
        resolved: the model.
        task: the head on top.
        python: the interpreter to use (``--python``); else the first that has torch and transformers.
        timeout: seconds for starting the worker, importing torch, and building the model.
        environ: where VIRTUAL_ENV and CONDA_PREFIX are looked up; this process's environment by default.
        cache: the folder of earlier answers; the user's cache folder by default.

    Raises:
        InputError: ``python`` is not there, or the config has no model type.
        CannotTellError: no interpreter has the libraries, or they cannot build this model.
    """
    config = complete_config(resolved.config, where=resolved.where)
    environ = os.environ if environ is None else environ
    interpreter = choose_interpreter(python, environ)
    file = _cache_file(cache or Path(user_cache_dir("vramtop")), config, task, interpreter.transformers)
    answer = read_cached(file, _FORMAT, Answer)
    if answer is None:
        with Worker(interpreter.path, environ=environ) as worker:
            message = worker.request({"op": "inventory", "config": config, "task": task}, timeout)
        answer = read_answer(message)
        write_cached(file, _FORMAT, message)
    return inventory_from_answer(answer)


class Group(msgspec.Struct, frozen=True):
    """One group of a worker's answer."""

    name: str
    shape: tuple[int, ...]
    repeat: int
    dtype: str
    kind: Kind


class Answer(msgspec.Struct, frozen=True):
    """A worker's answer to the request ``inventory``."""

    groups: tuple[Group, ...]
    layers: int
    tied_head: bool
    versions: dict[str, str]


def read_answer(message: Mapping[str, Any]) -> Answer:
    """A worker's message as an answer.

    Raises:
        CannotTellError: it is none.
    """
    try:
        return msgspec.convert(message, Answer)
    except msgspec.ValidationError as error:
        raise CannotTellError(f"the worker's answer is not understood: {error}") from None


def inventory_from_answer(answer: Answer) -> Inventory:
    """The inventory that a worker counted, with the same roles as one read from the shape."""
    return Inventory(
        groups=assign_roles(NamedShape(g.name, g.shape, g.repeat, g.kind) for g in answer.groups),
        layers=answer.layers,
        tied_head=answer.tied_head,
        count="exact",
        source=f"transformers {answer.versions.get('transformers', '?')} on the meta device",
    )


def _cache_file(folder: Path, config: Mapping[str, Any], task: Task, transformers: str) -> Path:
    key = msgspec.json.encode([_FORMAT, config, task, transformers], order="sorted")
    return folder / "inventories" / f"{hashlib.sha256(key).hexdigest()[:32]}.json"
