"""The matrices that LoRA puts beside adapted layers: counted by peft itself on the built model, or by peft's rules.

Source: peft 0.21, ``tuners/lora`` and ``utils/transformers_weight_conversion.py``.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from ..common.errors import InputError
from ..job.job import Job, Lora
from .parameters import Inventory, ParameterGroup

_PARTS = frozenset({"q_proj", "k_proj", "v_proj"})
_WHOLE = frozenset({"query_key_value", "qkv_proj", "c_attn"})
"""In LitGPT queries, keys and values are one layer, adapted by its parts; what families call it that fuse it too."""
_Targets = tuple[str, ...] | Literal["all-linear"]
_FUSED_FAMILIES = frozenset(
    {
        "afmoe",
        "cohere2_moe",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "dots1",
        "ernie4_5_moe",
        "exaone_moe",
        "flex_olmo",
        "glm4_moe",
        "glm4_moe_lite",
        "glm4v_moe",
        "glm_moe_dsa",
        "hunyuan_v1_moe",
        "longcat_flash",
        "minimax",
        "minimax_m2",
        "mixtral",
        "olmoe",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_omni_moe",
        "qwen3_omni_moe_text",
        "qwen3_omni_moe_thinker",
        "solar_open",
    }
)
"""Families whose experts transformers 5 fused, and for which peft takes the old names to mean the fused ones."""


def adapter_groups(inventory: Inventory, job: Job) -> tuple[ParameterGroup, ...]:
    """What peft put into the built model, else what it, or LitGPT, would put in; nothing without adapters.

    Raises:
        InputError: nothing in the model is called as the targets are.
    """
    if job.lora is None or inventory.adapters is not None:
        return inventory.adapters or ()
    return _cached_groups(inventory, job.lora.rank, _targets(job.lora), job.training.framework == "litgpt")


def adapter_elements(inventory: Inventory, job: Job) -> int:
    """Elements of ``adapter_groups``.

    Raises:
        InputError: as that does.
    """
    if job.lora is None or inventory.adapters is not None:
        return sum(group.elements for group in inventory.adapters or ())
    return _cached_elements(inventory, job.lora.rank, _targets(job.lora), job.training.framework == "litgpt")


def _targets(lora: Lora) -> _Targets:
    return lora.targets if isinstance(lora.targets, str) else tuple(lora.targets)


@lru_cache(maxsize=256)
def _cached_elements(inventory: Inventory, rank: int, targets: _Targets, litgpt: bool) -> int:
    return sum(group.elements for group in _cached_groups(inventory, rank, targets, litgpt))


@lru_cache(maxsize=256)  # sweeps ask for the same again and again
def _cached_groups(inventory: Inventory, rank: int, targets: _Targets, litgpt: bool) -> tuple[ParameterGroup, ...]:
    lora = Lora(rank=rank, targets=targets if isinstance(targets, str) else list(targets))
    return tuple(adapter_groups_by_rule(inventory, lora, litgpt=litgpt))


def adapter_groups_by_rule(inventory: Inventory, lora: Lora, *, litgpt: bool = False) -> Iterator[ParameterGroup]:
    """By rule: A (r, in) and B (out, r) beside each adapted linear layer; fused experts have r for each of them.

    Args:
        inventory: the model's parameters.
        lora: rank and targets.
        litgpt: LitGPT makes them, not peft.

    Raises:
        InputError: nothing in the model is called as the targets are, or peft refuses them.
    """
    linear = [g for g in inventory.groups if g.linear and len(g.shape) == 2]
    if lora.targets == "all-linear":
        names: Collection[str] = {module_name(g) for g in linear if not _is_output_layer(g, inventory)}
    else:
        names = set(lora.targets) | (_WHOLE if litgpt and _PARTS & set(lora.targets) else set())
    fused = list(_fused_groups(inventory, names, every=lora.targets == "all-linear"))
    renamed = set(_old_names(inventory)) if fused else set()  # these then mean the fused tensors alone
    if lora.targets != "all-linear":
        linear += _tied_head(inventory)
    wanted = [g for g in linear if _matches(g, names) and not _matches(g, renamed) and _may_adapt(g, inventory, lora)]
    if not wanted and not fused:
        known = ", ".join(sorted({module_name(g) for g in linear if g.role != "head"}))
        raise InputError(f"lora.targets = {lora.targets!r} names no linear layer of this model; it has {known}")
    for group in wanted:
        columns, rows = group.shape if group.transposed else reversed(group.shape)
        yield from _matrix_pair(group, lora.rank, rows, columns)
    for group, times in fused:
        experts = group.shape[0] if len(group.shape) == 3 else 1
        yield from _matrix_pair(group, lora.rank * times * experts, *group.shape[-2:])


def module_name(group: ParameterGroup) -> str:
    """The last part of the module's name, which is what adapters are targeted by: ``q_proj``."""
    return _path(group).rpartition(".")[2]


def _path(group: ParameterGroup) -> str:
    return group.name.removesuffix(".weight")


def _matches(group: ParameterGroup, names: Collection[str]) -> bool:
    path = _path(group)
    return any(path == name or path.endswith(f".{name}") for name in names)


def _may_adapt(group: ParameterGroup, inventory: Inventory, lora: Lora) -> bool:
    return lora.targets != "all-linear" or not _is_output_layer(group, inventory)


def _tied_head(inventory: Inventory) -> list[ParameterGroup]:
    """A head that is the embedding has no parameter of its own, but is a layer that can be targeted."""
    if not inventory.tied_head or inventory.family in ("bert", "roberta", "distilbert"):  # there it is called otherwise
        return []
    tokens = [g for g in inventory.groups if g.role == "embedding" and g.shape[0] == _vocabulary_rows(inventory)]
    return [replace(group, name="lm_head.weight") for group in tokens[:1]]


def _is_output_layer(group: ParameterGroup, inventory: Inventory) -> bool:
    """The layer that gives the logits over the vocabulary, which ``all-linear`` leaves out."""
    return group.role == "head" and group.shape[0] == _vocabulary_rows(inventory)


def _vocabulary_rows(inventory: Inventory) -> int:
    return max((g.shape[0] for g in inventory.groups if g.role == "embedding"), default=0)


def _old_names(inventory: Inventory) -> dict[str, str]:
    """What the parts of a mixture of experts were called before they were fused, and are called now."""
    if inventory.family not in _FUSED_FAMILIES:
        return {}
    gate, up, down = ("w1", "w3", "w2") if inventory.family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    return {"gate": "gate.weight", gate: "gate_up_proj", up: "gate_up_proj", down: "down_proj"}


def _fused_groups(inventory: Inventory, names: Collection[str], *, every: bool) -> Iterator[tuple[ParameterGroup, int]]:
    """Fused parameters that are adapted, and with how many times the rank: once for each layer fused into one."""
    old_names = _old_names(inventory)
    asked = {old for old in old_names if every or old in names}
    for group in inventory.groups:
        if group.role not in ("expert", "router") or group.linear or len(group.shape) < 2:
            continue
        meant = {old for old, new in old_names.items() if group.name.endswith(f".{new}")}
        if not meant & asked:
            continue
        if missing := meant - asked:
            raise InputError(
                f"lora.targets: peft cannot adapt {', '.join(sorted(meant & asked))} without "
                f"{', '.join(sorted(missing))}; transformers 5 holds them in one tensor"
            )
        yield group, len(meant)


def _matrix_pair(group: ParameterGroup, rank: int, rows: int, columns: int) -> Iterator[ParameterGroup]:
    for letter, shape in (("A", (rank, columns)), ("B", (rows, rank))):
        yield ParameterGroup(
            name=f"{group.name.removesuffix('.weight')}.lora_{letter}.weight",
            shape=shape,
            repeat=group.repeat,
            role=group.role,
            linear=False,
            layered=group.layered,
        )
