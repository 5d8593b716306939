"""Traces of deep models from those of shallow ones: layers that are alike need to be traced only a few times."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .inventory import build_model
from .memory.tracker import AllocationHistory, Phase, StorageRecord, block_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence as Many

# Finds what one more layer adds to a sequence of tokens: one more round of each loop over layers or parameters.


@dataclass(frozen=True)
class Loop:
    """A stretch of tokens that occurs once more for every step in depth."""

    at: int
    """Index in the shallowest sequence before which its rounds are inserted."""
    tokens: tuple[int, ...]
    """Tokens of one round."""


def find_loops(before: list[int], after: list[int]) -> list[Loop] | None:
    """Return the rounds by which a deeper model's sequence is longer; None: it differs in another way.

    Each round repeats the tokens in front of it.
    """
    loops: list[Loop] = []
    i = j = 0
    while True:
        equal = _common_length(before, i, after, j)
        i, j = i + equal, j + equal
        if i == len(before) and j == len(after):
            return loops
        best, length = -1, 0
        longest = len(after) - len(before) - (j - i)
        for candidate in range(1, min(longest, j) + 1):
            ahead = j + candidate
            if i < len(before) and (ahead == len(after) or after[ahead] != before[i]):
                continue
            if after[j:ahead] == after[j - candidate : j]:
                common = _common_length(before, i, after, ahead)
                if common > best:
                    best, length = common, candidate
        if best < 0:
            return None
        loops.append(Loop(i, tuple(after[j : j + length])))
        j += length


def unroll(tokens: list[int], loops: list[Loop], rounds: int) -> list[int]:
    """Return the tokens with so many rounds of every loop inserted."""
    result: list[int] = []
    start = 0
    for loop in loops:
        result += tokens[start : loop.at]
        result += loop.tokens * rounds
        start = loop.at
    return result + tokens[start:]


def _common_length(one: list[int], i: int, other: list[int], j: int) -> int:
    """Return how many tokens from these places on are equal."""
    length = min(len(one) - i, len(other) - j)
    low, step = 0, 64
    while low < length:
        high = min(low + step, length)
        if one[i + low : i + high] == other[j + low : j + high]:
            low, step = high, step * 2
        elif high - low == 1:
            return low
        else:
            step = max(1, (high - low) // 2)
    return low


# Events of a history as tokens that are equal wherever alike layers do alike things.
#
# Numbers that differ between alike layers are kept apart from a token: those in the name of a module, the record that
# an event frees or returns, and the length of a vector with one element for each gradient (the norms that clipping
# stacks).


_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Allocation:
    """What alike storages share."""

    nbytes: int
    """-1: of a vector with one element for each gradient."""
    shape: tuple[int, ...]
    dtype: str
    module: str
    """Path of the module with ``{}`` for numbers."""
    stream: int
    component: str | None
    host: bool
    used_on: tuple[int, ...]
    gpu: int


ACTIONS = ALLOCATE, FREE, RETURN = range(3)
"""A storage is allocated, freed, or the block of a freed one returns to its pool."""


@dataclass
class Vocabulary:
    """Numbers of tokens, the same for all histories that are compared.

    A token is the number of a kind of storage times three, plus the action. Negative tokens begin phases.
    """

    kinds: list[Allocation] = field(default_factory=list)
    phases: list[tuple[int, str]] = field(default_factory=list)
    _numbers: dict[Allocation, int] = field(default_factory=dict)

    def kind(self, allocation: Allocation) -> int:
        """Return the number of a kind of storage."""
        number = self._numbers.get(allocation)
        if number is None:
            number = self._numbers[allocation] = len(self.kinds)
            self.kinds.append(allocation)
        return number

    def phase(self, phase: tuple[int, str]) -> int:
        """Return the token that begins a phase."""
        if phase not in self.phases:
            self.phases.append(phase)
        return -1 - self.phases.index(phase)


@dataclass(frozen=True)
class Sequence:
    """A history as tokens."""

    tokens: list[int]
    numbers: list[tuple[int, ...]]
    """Numbers of each token: those in the module's name, or that of the record that it frees or returns."""


def read_tokens(history: AllocationHistory, vocabulary: Vocabulary, gradients: int) -> Sequence:
    """Return the tokens of a history in which so many parameters have gradients."""
    kinds, names = [], []
    for each in history.records:
        kind, name = _split(each, gradients)
        kinds.append(vocabulary.kind(kind))
        names.append(name)
    tokens: list[int] = []
    numbers: list[tuple[int, ...]] = []
    starts: dict[int, list[int]] = {}
    for phase in history.phases:
        starts.setdefault(phase.start, []).append(vocabulary.phase((phase.step, phase.name)))
    returns: dict[int, list[int]] = {}
    for index, record in history.returns:
        returns.setdefault(index, []).append(record)
    for index in range(len(history.events) + 1):
        for token in starts.get(index, ()):
            tokens.append(token)
            numbers.append(())
        for record in returns.get(index, ()):
            tokens.append(len(ACTIONS) * kinds[record] + RETURN)
            numbers.append((record,))
        if index < len(history.events):
            event = history.events[index]
            record = abs(event) - 1
            tokens.append(len(ACTIONS) * kinds[record] + (ALLOCATE if event > 0 else FREE))
            numbers.append(names[record] if event > 0 else (record,))
    return Sequence(tokens, numbers)


def _split(record: StorageRecord, gradients: int) -> tuple[Allocation, tuple[int, ...]]:
    """Return what a record shares with alike ones, and the numbers in which they differ."""
    module, nbytes, shape = record.module, record.nbytes, record.shape
    numbers = tuple(map(int, _NUMBER.findall(module)))
    if numbers:
        module = _NUMBER.sub("{}", module)
    elif shape == (gradients,):
        numbers, nbytes, shape = (gradients, nbytes), -1, ()
    kind = Allocation(
        nbytes, shape, record.dtype, module, record.stream, record.component, record.host, record.used_on, record.gpu
    )
    return kind, numbers


# The history of a deep model, extrapolated from those of three shallow ones that differ by the same layers.
#
# The shallowest and the next one show what more layers insert (``find_loops``). Every number of a token (a layer's in
# a module's name, that of a freed record) has to be a linear function of the rounds inserted and of the round in
# which the token is; the third history, and the rounds in front of the inserted ones, have to agree with it. Last,
# every record that is freed has to be allocated then, and of the right kind. Whatever fails means: no proof, no
# result.


if TYPE_CHECKING:
    Numbers = tuple[int, ...]

SAMPLES = 3
"""Histories that are needed."""


@dataclass(frozen=True)
class _Stretch:
    """Tokens that occur once, or once in every round of a loop, with their numbers as linear functions."""

    tokens: list[int]
    constant: list[Numbers]
    per_depth: list[Numbers]
    per_round: list[Numbers] | None
    """None: they occur once."""


def extrapolate(histories: list[AllocationHistory], gradients: list[int], rounds: int) -> AllocationHistory | None:
    """Return the history of a model that has so many rounds more than the shallowest; None: there is no proof.

    Args:
        histories: three, each of a model with one round of layers more than the one before.
        gradients: number of trained parameters of each of these models.
        rounds: by which the model is deeper than the shallowest of them.
    """
    vocabulary = Vocabulary()
    sequences = [read_tokens(history, vocabulary, count) for history, count in zip(histories, gradients)]  # noqa: B905 - not in Python 3.9
    loops = find_loops(sequences[0].tokens, sequences[1].tokens)
    if loops is None or unroll(sequences[0].tokens, loops, 2) != sequences[2].tokens:
        return None
    stretches = _fit(sequences, loops)
    return None if stretches is None else _Builder(vocabulary).build(stretches, rounds)


def _fit(sequences: list[Sequence], loops: list[Loop]) -> list[_Stretch] | None:
    """Return all stretches in order; None: a number is no linear function.

    A round may be inserted before any of those that it repeats. Where the first or the last of a loop's rounds is not
    like the others, only some of these places give linear functions.
    """
    tokens, numbers = sequences[0].tokens, [sequence.numbers for sequence in sequences]
    stretches: list[_Stretch] = []
    start, inserted = 0, 0
    for loop in loops:
        length = len(loop.tokens)
        for at in range(loop.at, max(start, length) - 1, -length):
            if at < loop.at and tuple(tokens[at : at + length]) != loop.tokens:
                return None
            before = _fit_once(_columns(numbers, start, at, inserted))
            repeated = _fit_repeated(numbers, at, inserted, length) if before else None
            if before and repeated and _fit_once(_columns(numbers, at, loop.at, inserted + length)):
                break
        else:
            return None
        stretches += [_Stretch(tokens[start:at], *before, None), _Stretch(list(loop.tokens), *repeated)]
        start, inserted = at, inserted + length
    rest = _fit_once(_columns(numbers, start, len(tokens), inserted))
    return None if rest is None else [*stretches, _Stretch(tokens[start:], *rest, None)]


def _columns(numbers: list[list[Numbers]], start: int, end: int, inserted: int) -> list[list[Numbers]]:
    """Return the numbers of a stretch of the shallowest sequence, in each sequence.

    ``inserted`` tokens are in front of it for every step in depth.
    """
    return [each[start + depth * inserted : end + depth * inserted] for depth, each in enumerate(numbers)]


def _fit_once(columns: list[list[Numbers]]) -> tuple[list[Numbers], list[Numbers]] | None:
    """Return the constant and the increase per depth of each token's numbers."""
    slopes = []
    for zero, one, two in zip(*columns):  # noqa: B905 - not in Python 3.9
        slope = tuple([b - a for a, b in zip(zero, one)])  # noqa: B905 - not in Python 3.9
        if any(c - b != each for b, c, each in zip(one, two, slope)):  # noqa: B905 - not in Python 3.9
            return None
        slopes.append(slope)
    return columns[0], slopes


def _fit_repeated(
    numbers: list[list[Numbers]], at: int, inserted: int, length: int
) -> tuple[list[Numbers], list[Numbers], list[Numbers]] | None:
    """Return constant, increase per depth and increase per round of each token's numbers.

    Args:
        numbers: of each sequence.
        at: index in the shallowest sequence before which rounds are inserted: none, one and two.
        inserted: tokens in front of it for every step in depth.
        length: tokens of a round.
    """
    places = [at + depth * inserted for depth in range(SAMPLES)]
    constant, per_depth, per_round = [], [], []
    for offset in range(length):
        before = [each[place - length + offset] for each, place in zip(numbers, places)]  # noqa: B905 - Python 3.9
        one = numbers[1][places[1] + offset]
        two, last = (numbers[2][places[2] + offset + round_ * length] for round_ in range(2))
        rounds = tuple([b - a for a, b in zip(two, last)])  # noqa: B905 - not in Python 3.9
        depths = tuple([b - a for a, b in zip(one, two)])  # noqa: B905 - not in Python 3.9
        base = tuple([a - b for a, b in zip(one, depths)])  # noqa: B905 - not in Python 3.9
        for depth, found in enumerate(before):  # the round in front of the inserted ones
            if any(a + depth * b - c != each for a, b, c, each in zip(base, depths, rounds, found)):  # noqa: B905
                return None
        constant.append(base)
        per_depth.append(depths)
        per_round.append(rounds)
    return constant, per_depth, per_round


class _Builder:
    """Makes a history of tokens and their numbers."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._history = AllocationHistory()
        self._states: list[int] = []
        """The last token of each record."""
        self._names: dict[tuple[str, Numbers], str] = {}

    def build(self, stretches: list[_Stretch], rounds: int) -> AllocationHistory | None:
        """Return the history with so many rounds; None: it frees what it does not hold."""
        for stretch in stretches:
            base = [
                tuple([a + rounds * b for a, b in zip(*each)])  # noqa: B905 - not in Python 3.9
                for each in zip(stretch.constant, stretch.per_depth)  # noqa: B905 - not in Python 3.9
            ]
            if stretch.per_round is None:
                if not self._add(stretch.tokens, base):
                    return None
                continue
            for _ in range(rounds):
                if not self._add(stretch.tokens, base):
                    return None
                base = [
                    tuple([a + b for a, b in zip(*each)])  # noqa: B905 - not in Python 3.9
                    for each in zip(base, stretch.per_round)  # noqa: B905 - not in Python 3.9
                ]
        return self._history

    def _add(self, tokens: list[int], numbers: list[Numbers]) -> bool:
        history, states = self._history, self._states
        events = history.events
        for token, own in zip(tokens, numbers):  # noqa: B905 - not in Python 3.9
            if token < 0:
                history.phases.append(Phase(*self._vocabulary.phases[-1 - token], len(events)))
                continue
            action = token % len(ACTIONS)
            if action == ALLOCATE:
                self._allocate(token, own)
                continue
            record = own[0]
            if not 0 <= record < len(states) or states[record] != token - 1:  # not the action before this one
                return False
            states[record] = token
            if action == FREE:
                events.append(-1 - record)
            else:
                history.returns.append((len(events), record))
        return True

    def _allocate(self, token: int, numbers: Numbers) -> None:
        kind, history = self._vocabulary.kinds[token // len(ACTIONS)], self._history
        nbytes, shape, module = kind.nbytes, kind.shape, kind.module
        if nbytes < 0:
            gradients, nbytes = numbers
            shape = (gradients,)
        elif numbers:
            module = self._names.get((module, numbers)) or self._names.setdefault(
                (module, numbers), module.format(*numbers)
            )
        number = len(self._states)
        size, stream, component = block_bytes(nbytes), kind.stream, kind.component
        history.records.append(
            StorageRecord(
                number, size, nbytes, shape, kind.dtype, module, stream, component, kind.host, kind.used_on, kind.gpu
            )
        )
        self._states.append(token)
        history.events.append(number + 1)


# Shallow models that show how the layers of a deep one repeat: which layers are alike, and configs with fewer of
# them.
#
# The whole model is built without storage. Its layers are alike if their modules, parameters and settings are. Where
# their kinds repeat (each layer, or every few), configs with some rounds less are made; their layers must be the
# whole model's, less whole rounds.


DEPTH_FIELDS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
    "encoder_num_hidden_layers",
    "depth",
)
"""Fields of configs that say how many layers a model has."""
MAX_PERIOD = 8
"""Most layers of a round."""
EXTRA_TRACES = 1
"""Deeper models that are traced where the first ones prove nothing."""
WORTHWHILE = 0.75
"""Share of the layers up to which tracing shallow models is quicker."""
_OWN_NUMBER = re.compile(r"(^|_)(idx|index|id|number)$")
"""Attributes in which alike layers differ."""


@dataclass(frozen=True)
class ShallowModels:
    """Configs of models with fewer layers, from the shallowest on, each with a round more than the one before."""

    configs: list[dict[str, Any]]
    rounds: int
    """By which the whole model is deeper than the shallowest."""


@dataclass(frozen=True)
class _Pattern:
    """Kinds of layers that repeat: all but those at both ends."""

    head: int
    """Layers before the first round."""
    period: int
    """Layers of a round."""
    rounds: int
    tail: int
    """Layers after the last round."""

    def indices(self, rounds: int) -> list[int]:
        """Return the layers that a model with so many rounds has."""
        layers = self.head + self.rounds * self.period + self.tail
        return [*range(self.head + rounds * self.period), *range(layers - self.tail, layers)]


def plan_shallow_models(config: dict[str, Any], task: str, least: int) -> ShallowModels | None:
    """Return the models to trace instead of a whole one; None: its layers do not repeat, or are few.

    Args:
        config: of the whole model.
        task: its head.
        least: rounds of the shallowest model.
    """
    whole = _build(config, task)
    stacks = _stacks(whole)
    depth = max(map(len, stacks.values()), default=0)
    kinds = list(zip(*(each for each in stacks.values() if len(each) == depth)))  # noqa: B905 - not in Python 3.9
    pattern = _find_pattern(kinds, least)
    if pattern is None:
        return None
    configs = []
    traced = 0
    for rounds in range(least, min(least + SAMPLES + EXTRA_TRACES, pattern.rounds)):
        indices = pattern.indices(rounds)
        traced += len(indices)
        if traced > WORTHWHILE * depth:
            break
        shallow = _with_layers(config, whole.config, depth, indices)
        if not _has_layers(stacks, _stacks(_build(shallow, task)), depth, indices):
            return None
        configs.append(shallow)
    return ShallowModels(configs=configs, rounds=pattern.rounds - least) if len(configs) >= SAMPLES else None


def _build(config: dict[str, Any], task: str) -> Any:
    """Build a model without storage."""
    import torch

    with torch.device("meta"):
        return build_model(config, task)


def _stacks(model: Any) -> dict[str, list[Any]]:
    """Return the kinds of the layers of each outermost list of layers, by its path."""
    import torch

    stacks: dict[str, list[Any]] = {}
    for name, module in model.named_modules():
        inner = any(name.startswith(f"{other}.") for other in stacks)
        if isinstance(module, torch.nn.ModuleList) and len(module) > 1 and not inner:
            stacks[name] = [_kind(layer) for layer in module]
    return stacks


def _kind(layer: Any) -> tuple[Any, ...]:
    """Return what alike layers have in common: modules, parameters, buffers and settings."""
    found: list[Any] = []
    for name, module in layer.named_modules():
        settings = [
            (key, value)
            for key, value in vars(module).items()
            if isinstance(value, (bool, int, float, str, tuple, type(None))) and not _OWN_NUMBER.search(key)
        ]
        tensors = [*module._parameters.items(), *module._buffers.items()]
        shapes = [(key, each.shape, each.dtype, each.requires_grad) for key, each in tensors if each is not None]
        found.append((name, type(module), tuple(map(repr, settings)), tuple(shapes)))
    return tuple(found)


def _find_pattern(kinds: list[Any], min_rounds: int) -> _Pattern | None:
    """Return the pattern that needs the fewest layers to be traced."""
    patterns = []
    for period in range(1, MAX_PERIOD + 1):
        head, length = _longest_run([one == other for one, other in zip(kinds, kinds[period:])])  # noqa: B905 - 3.9
        rounds = (length + period) // period
        patterns.append(_Pattern(head, period, rounds, len(kinds) - head - rounds * period))
    usable = [each for each in patterns if each.rounds >= min_rounds + SAMPLES]
    return min(usable, key=lambda each: len(each.indices(min_rounds + 1)), default=None)


def _longest_run(same: list[bool]) -> tuple[int, int]:
    """Return start and length of the longest stretch of True."""
    best = start = length = 0
    for at, alike in enumerate([*same, False]):
        if alike:
            length += 1
            continue
        if length > best:
            start, best = at - length, length
        length = 0
    return start, best


def _with_layers(config: dict[str, Any], resolved: Any, depth: int, indices: list[int]) -> dict[str, Any]:
    """Return a config with only these layers of ``depth``: fewer of them, and lists that name each cut likewise."""
    missing = {name: depth for name in DEPTH_FIELDS if name not in config and getattr(resolved, name, None) == depth}
    return _cut({**missing, **config}, depth, indices)


def _cut(config: dict[str, Any], depth: int, indices: list[int]) -> dict[str, Any]:
    cut: dict[str, Any] = {}
    for name, value in config.items():
        if name in DEPTH_FIELDS and value == depth:
            cut[name] = len(indices)
        elif isinstance(value, list) and len(value) == depth:
            cut[name] = [value[index] for index in indices]
        elif isinstance(value, dict) and "rope" not in name:
            cut[name] = _cut(value, depth, indices)
        else:
            cut[name] = value
    return cut


def _has_layers(whole: dict[str, Any], shallow: dict[str, Any], depth: int, indices: list[int]) -> bool:
    """Return True if the shallow model's layers are those of the whole one."""
    expected = {
        name: [kinds[index] for index in indices] if len(kinds) == depth else kinds for name, kinds in whole.items()
    }
    return expected == shallow


# The trace of a deep model from traces of shallow ones, or none where it cannot be proven equal to the full one.


@dataclass(frozen=True)
class TracedSteps:
    """Result of a trace."""

    history: AllocationHistory
    parameters: int
    trainable: int
    gradients: int
    """Tensors that train, of which the rank holds a part."""
    doubts: tuple[str, ...]
    """Sentences about what the figures depend on and is not known."""
    versions: dict[str, str]
    """Versions of the libraries that took part."""


def trace_repeated(
    trace: Callable[[Many[dict[str, Any]]], list[TracedSteps]], config: dict[str, Any], task: str, least: int
) -> TracedSteps | None:
    """Return the trace of a model whose layers repeat, extrapolated; None: its layers have to be traced one by one.

    Args:
        trace: traces models with each of these configs.
        config: of the whole model.
        task: its head.
        least: rounds of the shallowest model that is traced: the first and the last often differ.
    """
    try:
        plan = plan_shallow_models(config, task, least)
        if plan is None:
            return None
        samples = trace(plan.configs[:SAMPLES])
        for extra in range(len(plan.configs) - SAMPLES + 1):
            if extra:
                samples += trace(plan.configs[SAMPLES + extra - 1 : SAMPLES + extra])
            found = _extrapolated(samples[-SAMPLES:], plan.rounds - extra)
            if found is not None:
                return found
    except Exception:  # noqa: BLE001 - whatever is wrong with a shallow model, the whole one gives the answer
        return None
    return None


def _extrapolated(samples: list[TracedSteps], rounds: int) -> TracedSteps | None:
    counts = [_linear([getattr(each, name) for each in samples], rounds) for name in _COUNTS]
    if None in counts:
        return None
    history = extrapolate([each.history for each in samples], [each.gradients for each in samples], rounds)
    if history is None:
        return None
    values: dict[str, Any] = dict(zip(_COUNTS, counts))  # noqa: B905 - not in Python 3.9
    doubts = dict.fromkeys(sentence for each in samples for sentence in each.doubts)
    return TracedSteps(history=history, doubts=tuple(doubts), versions=samples[0].versions, **values)


_COUNTS = ("parameters", "trainable", "gradients")


def _linear(values: list[int], rounds: int) -> int | None:
    zero, one, two = values
    return zero + rounds * (one - zero) if two - one == one - zero else None
