"""Findings of one reading of a script: models, optimizers, trainers, settings, and doubts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....job import UncertaintyDirection
from ...source import Component, OldCall, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Something that memory depends on and that was not understood."""

    sentence: str
    direction: UncertaintyDirection = "either"
    components: tuple[Component, ...] = ()
    key: str | None = None
    """The job key whose value, given by the user, removes the doubt."""
    asks: bool = False
    """No range allows for it: the user has to give the key."""


@dataclass(slots=True)
class Notes:
    """The outcome of one reading."""

    find_config: Callable[[str], Mapping[str, Any] | None]
    """Returns the config of a model by its name; None if it is not on this machine."""
    versions: Mapping[str, str]
    """Installed versions by distribution, where known."""
    models: list[Any] = field(default_factory=list)
    """Every model that the script makes, in order."""
    modules: list[Any] = field(default_factory=list)
    """Objects of the script's classes, which may hold models and layers."""
    optimizers: list[Any] = field(default_factory=list)
    trainers: list[Any] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)
    """``TrainingArguments`` and the like."""
    parameters_given: list[Any] = field(default_factory=list)
    """Models or parameters that something other than an optimizer of a known class trains."""
    written: dict[str, Setting] = field(default_factory=dict)
    hints: dict[str, Setting] = field(default_factory=dict)
    accelerate: dict[str, Setting] = field(default_factory=dict)
    own_loop: dict[str, Setting] = field(default_factory=dict)
    """Settings of the script's own training loop, by accelerate's names."""
    sharded: list[Any] = field(default_factory=list)
    """What FSDP wraps in the script's own training loop, in order."""
    assigned: dict[str, Setting] = field(default_factory=dict)
    """Settings that the script assigns after it has parsed its command line."""
    unresolved: dict[str, str] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    old_calls: dict[OldCall, str] = field(default_factory=dict)
    """What today's libraries refuse, and where it stands."""
    own_loss: bool = False
    """A class of the script's, derived from one of TRL's trainers, computes the loss itself."""
    doubts: dict[str, Doubt] = field(default_factory=dict)
    """By their sentences."""
    assumed: dict[str, Doubt] = field(default_factory=dict)
    """What was not followed, by sentences: doubts where nothing more specific says the same."""
    names_found: dict[int, Setting] = field(default_factory=dict)
    """Models' names that configs (1) and tokenizers (2) are loaded by."""
    living: list[set[int]] = field(default_factory=list)
    """Models that something refers to, by identity, each time that the script trains."""

    default_dtype: Setting | None = None
    added_tokens: int | None = 0
    """Tokens that the script adds to its tokenizer; None: unknown."""

    def living_beside(self, trained: Any) -> set[int] | None:
        """Return the models that live while a model trains; None: no training was seen."""
        points = [point for point in self.living if id(trained) in point] or self.living
        return max(points, key=len, default=None)

    def doubt(
        self,
        sentence: str,
        *components: Component,
        direction: UncertaintyDirection = "either",
        key: str | None = None,
        asks: bool = False,
    ) -> None:
        """Note something that was not understood, and the components of memory that it concerns."""
        doubt = Doubt(sentence=sentence, direction=direction, components=components, key=key, asks=asks)
        self.doubts.setdefault(sentence, doubt)

    def assume(
        self,
        sentence: str,
        *components: Component,
        direction: UncertaintyDirection = "either",
        key: str | None = None,
    ) -> None:
        """Note something that is counted like a library's because it was not followed."""
        doubt = Doubt(sentence=sentence, direction=direction, components=components, key=key)
        self.assumed.setdefault(sentence, doubt)

    def all_doubts(self) -> list[Doubt]:
        """Return the doubts, with those assumptions that no doubt covers: one for the same components or key."""
        found = list(self.doubts.values())
        for each in self.assumed.values():
            if not any(
                (known.key == each.key and known.key is not None)
                or (known.key is None and known.direction == "either" and set(each.components) <= set(known.components))
                for known in found
            ):
                found.append(each)
        return found
