"""Counts a model's parameters on the model itself, built without storage in a worker process; cached on disk."""

import os
from typing import Any

import msgspec

from ..common.records import replace
from ..job.settings import Lora, Task
from ..model.find_config import ResolvedModel
from ..model.inventory import Buffer, Inventory, ParameterGroup
from ..model.parameter_roles import NamedShape, assign_roles, with_role
from ..model.read_architecture import complete_config
from .answer_cache import cached_request
from .interpreters import choose_interpreter

_TIMEOUT_SECONDS = 120
"""Time for starting the worker, importing torch, and building the model."""


def exact_inventory(
    resolved: ResolvedModel,
    task: Task,
    *,
    lora: Lora | None = None,
    places: bool = False,
    python: str | None = None,
) -> Inventory:
    """Return every parameter of the model as the installed transformers builds it.

    Args:
        resolved: the model.
        task: the head on top.
        lora: adapters that peft adds.
        places: with the numbers of the blocks in which each parameter is.
        python: the interpreter (``--python``); None: the first that has torch and transformers.

    Raises:
        InputError: ``python`` does not exist, or the config has no model type.
        CannotTellError: no interpreter has the libraries, or they cannot build this model.
    """
    config = {} if resolved.source == "code" else complete_config(resolved.config, where=resolved.where)
    interpreter = choose_interpreter(python, os.environ)
    request: dict[str, Any] = {"op": "inventory", "config": config, "task": task}
    if lora is not None:
        request["lora"] = {"rank": lora.rank, "targets": lora.targets}
    if places:
        request["places"] = True
    if resolved.code is not None:
        request["code"] = dict(resolved.code)
    return inventory_from_answer(cached_request("inventories", interpreter, request, InventoryAnswer, _TIMEOUT_SECONDS))


class InventoryAnswer(msgspec.Struct, frozen=True):
    """A worker's answer to the request ``inventory``."""

    groups: tuple[NamedShape, ...]
    layers: int
    tied_head: bool
    tied: tuple[tuple[str, ...], ...]
    buffers: tuple[Buffer, ...]
    adapters: tuple[NamedShape, ...] | None
    config: dict[str, Any] | None
    versions: dict[str, str]


def inventory_from_answer(answer: InventoryAnswer) -> Inventory:
    """Return the inventory that a worker counted, with the roles that one counted from the shape has."""
    family = (answer.config or {}).get("model_type")
    return Inventory(
        groups=assign_roles(answer.groups),
        layers=answer.layers,
        tied_head=answer.tied_head,
        count="exact",
        source=f"transformers {answer.versions.get('transformers', '?')} on the meta device",
        family=family if isinstance(family, str) and family else None,
        adapters=None if answer.adapters is None else tuple(_adapter(group) for group in answer.adapters),
        tied=answer.tied,
        buffers=answer.buffers,
        config=answer.config,
    )


def _adapter(group: NamedShape) -> ParameterGroup:
    """Return an adapter's parameters, with the role of the layer that it adapts."""
    base = group.name.partition(".lora_")[0]
    return ParameterGroup(
        name=group.name.replace(".default", ""),
        shape=group.shape,
        repeat=group.repeat,
        role=with_role(replace(group, name=f"{base}.weight")).role,
        linear=False,
        layered=".*." in group.name,
    )
