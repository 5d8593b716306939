"""LoRA's adapters, by peft's rules or of a model that it built, and the frozen layers that are quantized below them.

Source: peft 0.21, ``tuners/lora`` and ``utils/transformers_weight_conversion.py``.
"""

from collections.abc import Collection, Iterator
from functools import lru_cache
from math import prod
from typing import Literal

import msgspec

from ..common.errors import InputError
from ..common.records import replace
from ..job.resolved_job import ResolvedJob
from ..job.rules.dtype_widths import BITSANDBYTES, quantized_bytes
from ..job.settings import Lora
from .families.registry import family_of
from .inventory import Inventory, ParameterGroup

_QKV_PARTS = frozenset({"q_proj", "k_proj", "v_proj"})
_FUSED_QKV = frozenset({"query_key_value", "qkv_proj", "c_attn"})
"""In LitGPT queries, keys and values are one layer whose parts are adapted; families that fuse them use these names."""
_FUSED_GATE = "gate_up_proj"
"""In LitGPT the MLP's gate and its other half are two layers with adapters of their own, also those of experts."""
_Targets = tuple[str, ...] | Literal["all-linear"]


def adapter_groups(inventory: Inventory, job: ResolvedJob) -> tuple[ParameterGroup, ...]:
    """Return the adapters in the built model, or those that peft or LitGPT would add; none without adapters.

    Raises:
        InputError: no layer of the model matches the targets.
    """
    if job.lora is None or inventory.adapters is not None:
        return inventory.adapters or ()
    targets = job.lora.targets if isinstance(job.lora.targets, str) else tuple(job.lora.targets)
    return _cached_groups(inventory, job.lora.rank, targets, job.framework.fused_qkv)


def adapter_elements(inventory: Inventory, job: ResolvedJob) -> int:
    """Return the number of elements in ``adapter_groups``.

    Raises:
        InputError: no layer of the model matches the targets.
    """
    return sum(group.elements for group in adapter_groups(inventory, job))


def adapter_groups_by_rule(inventory: Inventory, lora: Lora, *, fused_qkv: bool = False) -> Iterator[ParameterGroup]:
    """Yield A (r, in) and B (out, r) for each adapted linear layer; fused experts have rank r for each expert.

    Of a family whose layers' names are not known, these are all its linear layers if a target has none of the names.

    Args:
        inventory: the model's parameters.
        lora: rank and targets.
        fused_qkv: the layers are LitGPT's: queries, keys and values are one, the MLP's gate and its other half two.

    Raises:
        InputError: no layer of the model matches the targets, or peft refuses them.
    """
    linear = [g for g in inventory.groups if g.linear and len(g.shape) == 2]
    named = inventory.count == "exact" or all(any(_matches(g, [t]) for g in linear) for t in lora.targets)
    every = lora.targets == "all-linear" or not named
    if every:
        # without the layer that computes the logits over the vocabulary
        words = _vocabulary_rows(inventory)
        candidates = [g for g in linear if g.role != "head" or g.shape[0] != words]
        names: Collection[str] = {module_name(g) for g in candidates}
    else:
        candidates = [*linear, *_tied_head(inventory)]
        names = set(lora.targets) | (_FUSED_QKV if fused_qkv and _QKV_PARTS & set(lora.targets) else set())
    fused = list(_fused_groups(inventory, names, every=every))
    renamed = set(_old_names(inventory)) if fused else set()  # these then mean only the fused tensors
    wanted = [g for g in candidates if _matches(g, names) and not _matches(g, renamed)]
    if not wanted and not fused:
        known = ", ".join(sorted({module_name(g) for g in candidates if g.role != "head"}))
        raise InputError(f"lora.targets = {lora.targets!r} names no linear layer of this model; it has {known}")
    for group in wanted:
        layer = group
        if fused_qkv and module_name(group) == _FUSED_GATE:
            layer = replace(group, shape=(group.shape[0] // 2, group.shape[1]), repeat=2 * group.repeat)
        columns, rows = layer.shape if layer.transposed else reversed(layer.shape)
        yield from _matrix_pair(layer, lora.rank, rows, columns)
    for group, times in fused:
        experts = group.shape[0] if len(group.shape) == 3 else 1
        rows, columns = group.shape[-2:]
        yield from _matrix_pair(group, lora.rank * times * experts, rows // times if fused_qkv else rows, columns)


def unmatched_targets(inventory: Inventory, job: ResolvedJob) -> tuple[str, ...]:
    """Return the targets that name no module of the model, which peft passes over as long as others do.

    Those with their place in a block come from a pattern, which stands for the names of every family.
    """
    unknown = job.framework.own_adapters or inventory.count == "approximate"
    if job.lora is None or isinstance(job.lora.targets, str) or unknown:
        return ()
    modules = [*inventory.groups, *_tied_head(inventory)]
    known = {part for group in modules for part in _path(group).split(".")} | set(_old_names(inventory))
    return tuple(name for name in job.lora.targets if "." not in name and name not in known)


def module_name(group: ParameterGroup) -> str:
    """Return the last part of the module's name, by which adapters are targeted: ``q_proj``."""
    return _path(group).rpartition(".")[2]


def separates_experts(job: ResolvedJob, family: str | None) -> bool:
    """Return True if the job's transformers holds the experts of a family as linear layers."""
    own = job.framework.transformers_models and job.versions.separates_experts
    return own and family_of(family).separate_expert_names is not None


class QuantizedLayers(msgspec.Struct, frozen=True):
    """The layers of a model that a job quantizes."""

    kind: str | None
    """Storage format, named as in a job file: ``nf4``, ``int8``, ...; None: nothing is quantized."""
    head: bool
    """The head too."""
    experts: bool
    """Experts are linear layers of their own, which are quantized, not two tensors."""
    fused_experts: bool = False
    """Experts that are fused into two tensors are quantized too."""
    linear: bool | None = None
    """Linear layers, apart from the head; None: those that the built model shows."""

    @classmethod
    def of(cls, job: ResolvedJob, inventory: Inventory) -> "QuantizedLayers":
        """Return the layers that a job quantizes of a model.

        Lightning's plugin replaces the head too (``BitsandbytesPrecision``; LitGPT passes no exceptions).
        """
        own = inventory.family == "falcon" and job.framework.transformers_models  # FalconLinear, a subclass of Linear
        linear = not job.versions.skips_own_linear if own else None
        return cls(
            job.quantization,
            job.framework.quantizes_head,
            separates_experts(job, inventory.family),
            job.quantizes_experts,
            linear,
        )

    def __contains__(self, group: ParameterGroup) -> bool:
        """Return True if a group is quantized: linear layers without the head; fused experts not by bitsandbytes.

        gpt-oss stores its experts in MXFP4, and nothing else.
        """
        if self.kind is None:
            return False
        if self.kind == "mxfp4":
            return group.role == "expert" and len(group.shape) > 1
        if self.kind not in BITSANDBYTES and group.role == "expert":
            return len(group.shape) > 1
        if self.head:
            return group.linear
        if self.experts and group.role in ("expert", "router") and len(group.shape) > 1:
            return True
        if self.fused_experts and group.role == "expert":
            return len(group.shape) > 2
        if self.linear is None and group.quantized is not None:
            return group.quantized
        return self.linear is not False and group.linear and group.role != "head"

    def stored_bytes(self, group: ParameterGroup, elements: int) -> int | None:
        """Return the bytes that so many elements of a group are stored in; None: they are not quantized."""
        if self.kind is None or group not in self:
            return None
        whole = quantized_bytes(group.shape, self.kind, transposed=group.transposed)
        return round(whole * elements / prod(group.shape))

    def layers_per_tensor(self, group: ParameterGroup) -> int:
        """Return the number of linear layers that one tensor of a group stands for."""
        if not self.experts or group.role != "expert" or len(group.shape) != 3:
            return 1
        return group.shape[0] * (2 if "gate_up" in group.name else 1)


@lru_cache(maxsize=256)  # sweeps repeat the same arguments
def _cached_groups(inventory: Inventory, rank: int, targets: _Targets, fused_qkv: bool) -> tuple[ParameterGroup, ...]:
    lora = Lora(rank=rank, targets=targets if isinstance(targets, str) else list(targets))
    return tuple(adapter_groups_by_rule(inventory, lora, fused_qkv=fused_qkv))


def _path(group: ParameterGroup) -> str:
    return group.name.removesuffix(".weight")


def _matches(group: ParameterGroup, names: Collection[str]) -> bool:
    path = _path(group)
    return any(path == name or path.endswith(f".{name}") for name in names)


def _tied_head(inventory: Inventory) -> list[ParameterGroup]:
    """Return the head that shares the embedding's weight: it has no parameter of its own but can be targeted."""
    if not inventory.tied_head or family_of(inventory.family).heads.masked_lm:  # that one has another name
        return []
    tokens = [g for g in inventory.groups if g.role == "embedding" and g.shape[0] == _vocabulary_rows(inventory)]
    return [replace(group, name="lm_head.weight") for group in tokens[:1]]


def _vocabulary_rows(inventory: Inventory) -> int:
    return max((g.shape[0] for g in inventory.groups if g.role == "embedding"), default=0)


def _old_names(inventory: Inventory) -> dict[str, str]:
    """Return the fused parameter by each name that a part of the experts had before transformers 5 fused them."""
    names = family_of(inventory.family).expert_names
    if names is None:
        return {}
    gate, up, down = names
    return {"gate": "gate.weight", gate: "gate_up_proj", up: "gate_up_proj", down: "down_proj"}


def _fused_groups(inventory: Inventory, names: Collection[str], *, every: bool) -> Iterator[tuple[ParameterGroup, int]]:
    """Yield the fused parameters that are adapted, each with the number of layers fused into it."""
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
                f"{', '.join(sorted(missing))}; transformers 5 holds them in one tensor; name both"
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
