"""Shallow models that show how the layers of a deep one repeat: which layers are alike, and configs with fewer of them.

The whole model is built without storage. Its layers are alike if their modules, parameters and settings are. Where
their kinds repeat (each layer, or every few), configs with some rounds less are made; their layers must be the whole
model's, less whole rounds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..model.build import build_model, prepare_for_training
from ..model.trainable import apply_trainable
from ..step.forward_pass import weights_dtype
from .extrapolation import SAMPLES

if TYPE_CHECKING:
    from ..request.request import Request

STRATEGIES = ("none", "ddp", "fsdp2", "fsdp1")
"""Strategies that do with each layer what they do with the one before. Buckets that fill across layers do not."""
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
MIN_ROUNDS = 2
"""Rounds of the shallowest model: the first and the last often differ."""
MIN_ROUNDS_OF = {"fsdp2": 3, "fsdp1": 4}
"""Rounds under FSDP, which gathers a unit ahead; FSDP1 has up to two unsharded ones wait for the GPU besides."""
MIN_WAITING_ROUNDS = 7
"""Rounds where FSDP1 reduces each block's gradient: each of three streams has blocks that wait for the GPU."""
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
    whole: Any
    """The whole model, on the meta device."""


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


_latest: tuple[str, ShallowModels | None] | None = None
"""The latest plan and what it depends on: a warm worker traces one setting of a model after another."""


def plan_shallow_models(request: Request) -> ShallowModels | None:
    """Return the models to trace instead of the request's; None: its layers do not repeat, or are few."""
    global _latest  # noqa: PLW0603 - a cache of one entry
    parts = request.config, request.task, request.lora, request.trainable, request.parallel, request.code
    key = repr((*parts, request.older, request.loop.experts, weights_dtype(request)))
    if _latest is None or _latest[0] != key:
        _latest = key, _plan(request)
    return _latest[1]


def _plan(request: Request) -> ShallowModels | None:
    if request.parallel.device_map is not None:
        return None  # which layers run on another GPU than the one before is not the same for all
    if request.code is not None or request.parallel.strategy not in STRATEGIES or not _alike_for_adapters(request):
        return None
    if request.training.framework == "litgpt" and request.parallel.strategy == "ddp":
        return None  # buckets hold the parameters of LitGPT's own model, which is not the one below
    if request.parallel.fsdp_units == "model" or request.parallel.fsdp_min_unit_parameters is not None:
        return None  # units hold as many layers as there are, or as make up a size
    whole = _build(request, request.config)
    stacks = _stacks(whole)
    depth = max(map(len, stacks.values()), default=0)
    kinds = list(zip(*(each for each in stacks.values() if len(each) == depth)))  # noqa: B905 - not in Python 3.9
    first = MIN_ROUNDS_OF.get(request.parallel.strategy, MIN_ROUNDS)
    if request.parallel.flat_sharded and request.lora is None:
        first = MIN_WAITING_ROUNDS
    pattern = _find_pattern(kinds, first)
    if pattern is None:
        return None
    configs = []
    traced = 0
    for rounds in range(first, min(first + SAMPLES + EXTRA_TRACES, pattern.rounds)):
        indices = pattern.indices(rounds)
        traced += len(indices)
        if traced > WORTHWHILE * depth:
            break
        config = _with_layers(request.config, whole.config, depth, indices)
        if not _has_layers(stacks, _stacks(_build(request, config)), depth, indices):
            return None
        configs.append(config)
    if len(configs) < SAMPLES:
        return None
    if (request.lora is not None or request.loop.experts) and request.parallel.strategy == "ddp":
        whole = prepare_for_training(whole, request)
    return ShallowModels(configs=configs, rounds=pattern.rounds - first, whole=whole)


def _alike_for_adapters(request: Request) -> bool:
    """Return True if adapters are added to all layers alike."""
    if request.lora is None or isinstance(request.lora.targets, str):
        return True  # "all-linear"
    return not any(part.isdigit() for target in request.lora.targets for part in target.split("."))


def _build(request: Request, config: dict[str, Any]) -> Any:
    """Build a model without storage."""
    import torch

    with torch.device("meta"):
        model = build_model(config, request.task, dtype=weights_dtype(request))
    if request.trainable is not None and request.lora is None:
        apply_trainable(model, request.trainable)
    return model


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
