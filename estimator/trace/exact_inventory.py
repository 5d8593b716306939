"""A model's parameters counted on the model itself, built without storage in a worker process; kept on disk."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from platformdirs import user_cache_dir

from ..common.errors import CannotTellError
from ..job.job import Lora, Task
from ..model.find_config import ResolvedModel
from ..model.parameter_roles import NamedShape, ParameterKind, assign_roles, with_role
from ..model.parameters import Buffer, Inventory, ParameterGroup
from ..model.read_architecture import complete_config
from .interpreters import Interpreter, choose_interpreter
from .worker_cache import read_cached, write_cached
from .worker_pool import POOL

_FORMAT = 3
"""Of the files in the cache; another number there is a miss."""


def exact_inventory(
    resolved: ResolvedModel,
    task: Task,
    *,
    lora: Lora | None = None,
    python: str | None = None,
    timeout: float = 120,
    environ: Mapping[str, str] | None = None,
    cache: Path | None = None,
) -> Inventory:
    """Every parameter of the model as the installed transformers builds it.

    Args:
        resolved: the model.
        task: the head on top.
        lora: adapters that peft is to put in.
        python: the interpreter to use (``--python``); else the first that has torch and transformers.
        timeout: seconds for starting the worker, importing torch, and building the model.
        environ: where VIRTUAL_ENV and CONDA_PREFIX are looked up; this process's environment by default.
        cache: the folder of earlier answers; the user's cache folder by default.

    Raises:
        InputError: ``python`` is not there, or the config has no model type.
        CannotTellError: no interpreter has the libraries, or they cannot build this model.
    """
    config = {} if resolved.source == "code" else complete_config(resolved.config, where=resolved.where)
    environ = os.environ if environ is None else environ
    interpreter = choose_interpreter(python, environ)
    request: dict[str, Any] = {"op": "inventory", "config": config, "task": task}
    if lora is not None:
        request["lora"] = {"rank": lora.rank, "targets": lora.targets}
    if resolved.code is not None:  # code may change at any time, so its answers are not kept
        return inventory_from_answer(
            _request_inventory(interpreter, {**request, "code": dict(resolved.code)}, timeout, environ)[0]
        )
    file = _cache_file(cache or Path(user_cache_dir("vramtop")), request, interpreter)
    answer = read_cached(file, _FORMAT, InventoryAnswer)
    if answer is None:
        answer, message = _request_inventory(interpreter, request, timeout, environ)
        write_cached(file, _FORMAT, message)
    return inventory_from_answer(answer)


class AnsweredGroup(msgspec.Struct, frozen=True):
    """One group of a worker's answer."""

    name: str
    shape: tuple[int, ...]
    repeat: int
    dtype: str
    kind: ParameterKind
    quantized: bool


class AnsweredBuffer(msgspec.Struct, frozen=True):
    """Buffers of one name and shape in a worker's answer."""

    name: str
    shape: tuple[int, ...]
    repeat: int
    dtype: str
    bytes: int
    persistent: bool


class AnsweredAdapter(msgspec.Struct, frozen=True):
    """One group of what peft put in."""

    name: str
    shape: tuple[int, ...]
    repeat: int
    dtype: str


class AnsweredExperts(msgspec.Struct, frozen=True):
    """Routed experts."""

    count: int
    elements: int


class InventoryAnswer(msgspec.Struct, frozen=True):
    """A worker's answer to the request ``inventory``."""

    groups: tuple[AnsweredGroup, ...]
    layers: int
    tied_head: bool
    tied: tuple[tuple[str, ...], ...]
    buffers: tuple[AnsweredBuffer, ...]
    adapters: tuple[AnsweredAdapter, ...] | None
    experts: AnsweredExperts | None
    tp_plan: dict[str, str]
    no_split: tuple[str, ...]
    config: dict[str, Any] | None
    versions: dict[str, str]


def read_answer(message: Mapping[str, Any]) -> InventoryAnswer:
    """A worker's message as an answer.

    Raises:
        CannotTellError: it is none.
    """
    try:
        return msgspec.convert(message, InventoryAnswer)
    except msgspec.ValidationError as error:
        raise CannotTellError(f"the worker's answer is not understood: {error}") from None


def inventory_from_answer(answer: InventoryAnswer) -> Inventory:
    """The inventory that a worker counted, with the same roles as one read from the shape."""
    named = (NamedShape(g.name, g.shape, g.repeat, g.kind, g.dtype, g.quantized) for g in answer.groups)
    family = (answer.config or {}).get("model_type")
    return Inventory(
        groups=assign_roles(named),
        layers=answer.layers,
        tied_head=answer.tied_head,
        count="exact",
        source=f"transformers {answer.versions.get('transformers', '?')} on the meta device",
        family=family if isinstance(family, str) and family else None,
        adapters=None if answer.adapters is None else tuple(_adapter(group) for group in answer.adapters),
        tied=answer.tied,
        buffers=tuple(
            Buffer(
                name=b.name,
                shape=b.shape,
                repeat=b.repeat,
                dtype=b.dtype,
                tensor_bytes=b.bytes,
                persistent=b.persistent,
            )
            for b in answer.buffers
        ),
        experts=answer.experts.count if answer.experts else 0,
        tensor_plan=tuple(answer.tp_plan.items()),
        no_split=answer.no_split,
        config=answer.config,
    )


def _adapter(group: AnsweredAdapter) -> ParameterGroup:
    """With the role of what it adapts."""
    base = group.name.partition(".lora_")[0]
    role = with_role(NamedShape(f"{base}.weight", group.shape, group.repeat, "linear")).role
    return ParameterGroup(
        name=group.name.replace(".default", ""),
        shape=group.shape,
        repeat=group.repeat,
        role=role,
        linear=False,
        layered=".*." in group.name,
        dtype=group.dtype,
    )


def _request_inventory(
    interpreter: Interpreter, request: Mapping[str, Any], timeout: float, environ: Mapping[str, str]
) -> tuple[InventoryAnswer, dict[str, Any]]:
    message = POOL.request(interpreter, request, timeout, environ=environ)
    return read_answer(message), message


def _cache_file(folder: Path, request: Mapping[str, Any], interpreter: Interpreter) -> Path:
    key = msgspec.json.encode([_FORMAT, request, interpreter.transformers, interpreter.peft], order="sorted")
    return folder / "inventories" / f"{hashlib.sha256(key).hexdigest()[:32]}.json"
