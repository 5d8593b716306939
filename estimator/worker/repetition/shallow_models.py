"""Shallow models that show how the layers of a deep one repeat: which layers are alike, and configs with fewer of them.

The whole model is built without storage. Its layers are alike if their modules, parameters and settings are. Where
their kinds repeat (each layer, or every few), configs with some rounds less are made; their layers must be the
whole model's, less whole rounds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..inventory import build_model
from .extrapolation import SAMPLES

DEPTH_FIELDS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers",
                "decoder_layers", "encoder_num_hidden_layers", "depth")  # fmt: skip
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
