"""Parameters of a model that train, block by block: the job's patterns applied to the names of an inventory.

Blocks are numbered through the model, an encoder's before a decoder's. Where the inventory does not say in which blocks
a group's parameters are (dense and MoE blocks of one model, counted from the shape), the first blocks are dense.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, combinations

import msgspec

from ..common.records import replace
from ..job.trainable import TrainableRules, trainable_rules
from .families.registry import family_of
from .inventory import Inventory, ParameterGroup

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
