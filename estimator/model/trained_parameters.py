"""Parameters of a model that train, block by block: the job's patterns applied to the names of an inventory.

Blocks are numbered through the model, an encoder's before a decoder's. Where the inventory does not say in which blocks
a group's parameters are (dense and MoE blocks of one model, counted from the shape), the first blocks are dense.
"""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, combinations
from math import prod
from typing import Literal

import msgspec

from ..common.errors import CannotTellError, InputError
from ..common.records import replace
from ..job.resolved_job import ResolvedJob
from ..job.rules.dtype_widths import BITSANDBYTES, quantized_bytes
from ..job.settings import Lora
from ..job.trainable import TrainableRules, trainable_rules
from .architecture import Inventory, ParameterGroup
from .families.registry import family_of

# Finds what trains from the number of trained parameters alone: such a number fits one usual choice, or none.


_AROUND = ("head", "norm", "embedding")
"""Parts outside of the blocks, those first that are trained alone most often."""


def patterns_of_count(inventory: Inventory, count: int) -> tuple[str, ...] | None:
    """Return patterns of names whose parameters are exactly that many; None: no usual choice is.

    The usual choices are the last blocks or none, with any of head, norm and embedding; biases, norms, attention or MLP
    alone, perhaps with the head.
    """
    if count <= 0:
        return ("!*",) if count == 0 else None
    for elements, patterns in _choices(inventory):
        if elements == count and patterns:
            return patterns
    return None


def _choices(inventory: Inventory) -> Iterator[tuple[int, tuple[str, ...]]]:
    around = {role: [g for g in inventory.groups if not g.layered and _part(g) == role] for role in _AROUND}
    sizes = {role: sum(g.elements for g in groups) for role, groups in around.items()}
    present = [role for role in _AROUND if sizes[role]]
    subsets = list(chain.from_iterable(combinations(present, size) for size in range(len(present) + 1)))
    blocks = _like_blocks(inventory)
    names = {role: tuple(g.name for g in groups) for role, groups in around.items()}
    for last in range(len(blocks) + 1):
        each = sum(g.elements for g in inventory.groups if g.layered) // max(1, len(blocks))
        for subset in subsets:
            trained = (*blocks[len(blocks) - last :], *chain.from_iterable(names[role] for role in subset))
            yield last * each + sum(sizes[role] for role in subset), trained
    for kind in ("bias", "norm", "attention", "mlp"):
        groups = [
            group
            for group in inventory.groups
            if (group.name.endswith("bias") if kind == "bias" else group.role == kind)
        ]
        found = tuple(group.name for group in groups)
        elements = sum(group.elements for group in groups)
        yield elements, found
        if kind != "bias":
            inside = [group for group in groups if group.layered]
            yield sum(group.elements for group in inside), tuple(group.name for group in inside)
        head = [group for group in around["head"] if group not in groups]
        yield elements + sum(group.elements for group in head), (*found, *(group.name for group in head))


def _part(group: ParameterGroup) -> str:
    return "embedding" if group.role == "embedding" or "embeddings." in group.name else group.role


def _like_blocks(inventory: Inventory) -> tuple[str, ...]:
    """Return the blocks' names, if there is one stack whose blocks are alike."""
    layered = [group for group in inventory.groups if group.layered]
    stacks = {group.name.partition(".*.")[0] for group in layered}
    if len(stacks) != 1 or any(group.repeat != inventory.layers for group in layered):
        return ()
    stack = stacks.pop()
    return tuple(f"{stack}.{number}" for number in range(inventory.layers))


_NUMBER = re.compile(r"(?<=\.)\*(?=\.)")
_MAX_NEAR_NAMES = 3
_COUNT_TOLERANCE = 0.002
"""Relative difference of two counts of one model."""
_MAX_OUTSIDE_SHARE = 0.05
"""Share of the model's parameters up to which additional ones are taken for layers that a program adds to it."""


class BlockRun(msgspec.Struct, frozen=True, kw_only=True):
    """Successive blocks in which the same parameters train."""

    count: int
    trained: frozenset[str]
    """Names of the groups whose parameters train in these blocks."""


@dataclass(frozen=True, eq=False, kw_only=True)  # not slotted: its names are cached
class TrainedParameters:
    """The parameters that train, by group."""

    blocks: int
    """Blocks of all stacks."""
    tensors: Mapping[ParameterGroup, Mapping[int, int]]
    """Per group of a repeated block: its tensors in each block."""
    trained: Mapping[ParameterGroup, frozenset[int]]
    """Per group of a repeated block: the blocks in which it trains."""
    others: frozenset[ParameterGroup]
    """Groups outside of blocks that train."""
    unmatched: tuple[str, ...]
    """Patterns that match no parameter."""
    guessed: bool
    """Patterns tell numbers in names apart that are guessed: those of MoE blocks, or of layers within T5's blocks."""
    inferred: tuple[str, ...] = ()
    """The patterns, where they were found by the number of trained parameters alone."""
    scale: float = 1.0
    """Share of these that train, where only their number is known."""
    outside: int = 0
    """Trained parameters that are none of the model's: of layers or prompts that a program adds to it."""

    def share(self, group: ParameterGroup, first: int, end: int) -> float:
        """Return the share of a group's parameters in the blocks from ``first`` to ``end`` that train."""
        if not group.layered:
            return self.scale if group in self.others else 0.0
        here = {block: count for block, count in self.tensors[group].items() if first <= block < end}
        trained = sum(count for block, count in here.items() if block in self.trained[group])
        return self.scale * trained / max(1, sum(here.values()))

    def runs(self, first: int, end: int) -> tuple[BlockRun, ...]:
        """Return the runs of like blocks from ``first`` to ``end``."""
        found: list[BlockRun] = []
        for block in range(first, end):
            trained = frozenset(group.name for group, blocks in self.trained.items() if block in blocks)
            count = 1
            if found and found[-1].trained == trained:
                count += found.pop().count
            found.append(BlockRun(count=count, trained=trained))
        return tuple(found)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all groups of which some parameters train."""
        return frozenset(group.name for group in (*self.others, *self.trained) if self.elements(group))

    @cached_property
    def count(self) -> int:
        """Elements that train."""
        return sum(self.elements(group) for group in (*self.others, *self.trained))

    @property
    def first_block(self) -> int:
        """Number of the first block in which something trains; ``blocks``: in none."""
        return min((block for blocks in self.trained.values() for block in blocks), default=self.blocks)

    @property
    def first_parameter(self) -> str | None:
        """Name of a small parameter of the first block: if it trains, gradients pass through all blocks."""
        layered = [group for group in self.trained if 0 in self.tensors[group]]
        smallest = min(layered, key=lambda group: group.elements, default=None)
        return None if smallest is None else _NUMBER.sub("0", smallest.name, count=1)

    @property
    def before_blocks(self) -> bool:
        """True if something before the first block trains."""
        return any(group.role == "embedding" for group in self.others)

    def elements(self, group: ParameterGroup) -> int:
        """Return the elements of a group that train."""
        return round(group.elements * self.share(group, 0, self.blocks))


@lru_cache(maxsize=64)  # searches ask for the same model again and again
def trained_parameters(inventory: Inventory, rules: TrainableRules) -> TrainedParameters:
    """Return which parameters of a model train by the rules for their names."""
    offsets, total = _stacks(inventory)
    tensors: dict[ParameterGroup, Mapping[int, int]] = {}
    trained: dict[ParameterGroup, frozenset[int]] = {}
    others: set[ParameterGroup] = set()
    unused, guessed = set(range(len(rules.rules))), False
    numbered = any(character.isdigit() for pattern in rules.patterns for character in pattern)
    for group in inventory.groups:
        aliases = _aliases(group, inventory)
        if not group.layered:
            if _decide(rules, (group.name, *aliases), unused):
                others.add(group)
            continue
        offset, blocks = offsets[_stack(group)]
        places, known = _places(group, blocks)
        found = {number: _decide(rules, tuple(names), unused) for number, names in _names(group, places).items()}
        tensors[group] = {offset + number: count for number, count in places.items()}
        trained[group] = frozenset(offset + number for number, trains in found.items() if trains)
        guessed |= not known and len(set(found.values())) > 1
        guessed |= numbered and group.places is None and len(_NUMBER.findall(group.name)) > 1
    return TrainedParameters(
        blocks=total,
        tensors=tensors,
        trained=trained,
        others=frozenset(others),
        unmatched=() if rules.optional else tuple(rules.patterns[at] for at in sorted(unused)),
        guessed=guessed,
    )


def trained_by_count(
    inventory: Inventory, count: int, rules: TrainableRules | None, *, adapters: bool
) -> TrainedParameters | None:
    """Return which of a model's own parameters train, where the running program reports how many do.

    Args:
        inventory: the model.
        count: trained parameters of its own, without adapters.
        rules: what was read of the program; they hold if they give that count.
        adapters: the job trains adapters, so that none of the model's own parameters train unless rules name them.
    """
    read = None if rules is None else trained_parameters(inventory, rules)
    given = read.count if read else 0 if adapters else inventory.parameters
    if abs(count - given) <= _COUNT_TOLERANCE * max(count, given):
        return read
    patterns = patterns_of_count(inventory, count)
    if patterns is not None:
        return replace(trained_parameters(inventory, trainable_rules(patterns)), inferred=patterns)
    if given < count <= given + _MAX_OUTSIDE_SHARE * inventory.parameters and (read or adapters):
        read = read or trained_parameters(inventory, trainable_rules(("!*",)))
        return replace(read, outside=count - given)
    every = trained_parameters(inventory, trainable_rules(("*",)))
    return replace(every, scale=min(1.0, count / max(1, inventory.parameters)))


def near_names(inventory: Inventory, pattern: str) -> tuple[str, ...]:
    """Return names of parameters that resemble a pattern which matches none."""
    names = [group.name.removesuffix(".weight") for group in inventory.groups]
    wanted = pattern.removeprefix("!").strip("*.")
    near = [name for name in names if wanted and wanted.lower() in name.lower()]
    parts = {part: name for name in names for part in name.split(".") if part != "*"}
    for part in difflib.get_close_matches(wanted.rpartition(".")[2], parts, n=_MAX_NEAR_NAMES, cutoff=0.5):
        near += [name for name in names if part in name.split(".")]
    return tuple(dict.fromkeys([*near, *names[-1:]]))[:_MAX_NEAR_NAMES]


def _decide(rules: TrainableRules, names: tuple[str, ...], unused: set[int]) -> bool:
    """Return whether a parameter of these names trains, and mark the rules that match it as used."""
    matching = [at for at, rule in enumerate(rules.compiled) if any(rule.search(name) for name in names)]
    unused.difference_update(matching)
    return rules.rules[matching[-1]][1] if matching else rules.otherwise


def _aliases(group: ParameterGroup, inventory: Inventory) -> tuple[str, ...]:
    """Return the other names of a tied parameter: those that were counted, else those that the family has."""
    for names in inventory.tied:
        if group.name in names:
            return tuple(name for name in names if name != group.name)
    if group.layered or inventory.tied:
        return ()
    head = family_of(inventory.family).heads.masked_lm
    found: list[str] = []
    if head and group.name == f"{head.output}.bias":
        return (f"{head.output}.decoder.bias",)
    if group.role == "embedding":
        largest = max(g.elements for g in inventory.groups if g.role == "embedding" and not g.layered)
        if inventory.tied_head and group.elements == largest:
            found.append(f"{head.output}.decoder.weight" if head else "lm_head.weight")
        before, shared, _ = group.name.partition("shared.weight")
        if shared:  # both stacks of T5 have it as theirs
            found += [f"{before}{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")]
    return tuple(found)


def _stacks(inventory: Inventory) -> tuple[dict[str, tuple[int, int]], int]:
    """Return the first block's number and the blocks of each stack, and the number of all blocks."""
    stacks: dict[str, list[ParameterGroup]] = {}
    for group in inventory.groups:
        if group.layered:
            stacks.setdefault(_stack(group), []).append(group)
    found, offset = {}, 0
    for stack in sorted(stacks, key=lambda name: "decoder" in name.split(".")):
        blocks = _blocks(stacks[stack])
        found[stack] = (offset, blocks)
        offset += blocks
    return found, offset


def _blocks(groups: list[ParameterGroup]) -> int:
    """Return the blocks of a stack: the highest number that is known, else as many as have an attention."""
    numbers = [place[0] for group in groups for place in group.places or ()]
    if numbers:
        return max(numbers) + 1
    attention = [group.repeat for group in groups if group.role == "attention" and group.linear]
    return min(attention) if attention else max(group.repeat for group in groups)


def _places(group: ParameterGroup, blocks: int) -> tuple[dict[int, int], bool]:
    """Return the number of a group's tensors in each block of its stack, and whether the blocks are known."""
    if group.places is not None:
        found: dict[int, int] = {}
        for number, *_ in group.places:
            found[number] = found.get(number, 0) + 1
        return found, True
    if group.repeat >= blocks:
        each, more = divmod(group.repeat, blocks)
        return {number: each + (number < more) for number in range(blocks)}, more == 0
    if group.role in ("expert", "router") or ".shared_expert" in group.name:
        return dict.fromkeys(range(blocks - group.repeat, blocks), 1), False
    return dict.fromkeys(range(group.repeat), 1), False


def _names(group: ParameterGroup, places: Mapping[int, int]) -> dict[int, Iterator[str]]:
    """Return the names of the parameters in each block; numbers within a block stay ``*`` where they are unknown."""
    if group.places is not None:
        names: dict[int, list[str]] = {}
        for place in group.places:
            names.setdefault(place[0], []).append(_numbered(group.name, place))
        return {number: iter(each) for number, each in names.items()}
    return {number: iter((_NUMBER.sub(str(number), group.name, count=1),)) for number in places}


def _numbered(name: str, numbers: tuple[int, ...]) -> str:
    """Return a name with numbers for its ``*``."""
    for number in numbers:
        name = _NUMBER.sub(str(number), name, count=1)
    return name


def _stack(group: ParameterGroup) -> str:
    return group.name.partition(".*.")[0]


# LoRA's adapters, by peft's rules or of a model that it built, and the frozen layers that are quantized below them.
#
# Source: peft 0.21, ``tuners/lora`` and ``utils/transformers_weight_conversion.py``.


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

    Args:
        inventory: the model's parameters.
        lora: rank and targets.
        fused_qkv: the layers are LitGPT's: queries, keys and values are one, the MLP's gate and its other half two.

    Raises:
        InputError: no layer of the model matches the targets, or peft refuses them.
    """
    every = lora.targets == "all-linear"
    linear = [g for g in inventory.groups if g.linear and len(g.shape) == 2]
    if every:
        names: Collection[str] = {module_name(g) for g in linear if not _is_output_layer(g, inventory)}
    else:
        names = set(lora.targets) | (_FUSED_QKV if fused_qkv and _QKV_PARTS & set(lora.targets) else set())
    fused = list(_fused_groups(inventory, names, every=every))
    renamed = set(_old_names(inventory)) if fused else set()  # these then mean only the fused tensors
    candidates = linear if every else [*linear, *_tied_head(inventory)]
    wanted = [g for g in candidates if _matches(g, names) and not _matches(g, renamed)]
    if every:
        wanted = [g for g in wanted if not _is_output_layer(g, inventory)]
    if not wanted and not fused:
        if inventory.count == "approximate":
            raise CannotTellError(
                f"the layers' names of model type {inventory.family!r} are not known, so adapters on "
                f"{', '.join(sorted(names))} cannot be counted from its config"
            )
        known = ", ".join(sorted({module_name(g) for g in candidates if g.role != "head"}))
        raise InputError(f"lora.targets = {lora.targets!r} names no linear layer of this model; it has {known}")
    for group in wanted:
        halved = fused_qkv and module_name(group) == _FUSED_GATE
        layer = (
            replace(group, shape=(group.shape[0] // 2, group.shape[1]), repeat=2 * group.repeat) if halved else group
        )
        columns, rows = layer.shape if layer.transposed else reversed(layer.shape)
        yield from _matrix_pair(layer, lora.rank, rows, columns)
    for group, times in fused:
        experts = group.shape[0] if len(group.shape) == 3 else 1
        rows, columns = group.shape[-2:]
        yield from _matrix_pair(group, lora.rank * times * experts, rows // times if fused_qkv else rows, columns)


def unmatched_targets(inventory: Inventory, job: ResolvedJob) -> tuple[str, ...]:
    """Return the targets that name no module of the model, which peft passes over as long as others do."""
    if job.lora is None or isinstance(job.lora.targets, str) or job.framework.own_adapters:
        return ()
    modules = [*inventory.groups, *_tied_head(inventory)]
    known = {part for group in modules for part in _path(group).split(".")} | set(_old_names(inventory))
    return tuple(name for name in job.lora.targets if name.rpartition(".")[2] not in known)


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

    @classmethod
    def of(cls, job: ResolvedJob, inventory: Inventory) -> "QuantizedLayers":
        """Return the layers that a job quantizes of a model.

        Lightning's plugin replaces the head too (``BitsandbytesPrecision``; LitGPT passes no exceptions).
        """
        return cls(job.quantization, job.framework.quantizes_head, separates_experts(job, inventory.family))

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
        return group.linear and group.role != "head" if group.quantized is None else group.quantized

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


def _is_output_layer(group: ParameterGroup, inventory: Inventory) -> bool:
    """Return True for the layer that computes the logits over the vocabulary, which ``all-linear`` leaves out."""
    return group.role == "head" and group.shape[0] == _vocabulary_rows(inventory)


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
