"""Parameters of a built model that train, by rules for their names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..request.errors import UnsupportedError

if TYPE_CHECKING:
    from ..request.request import Trainable


def apply_trainable(model: Any, trainable: Trainable) -> None:
    """Set ``requires_grad`` of every parameter."""
    trained = trained_names(model, trainable)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)


def trained_names(model: Any, trainable: Trainable) -> set[str]:
    """Return the first names of the parameters that train; a rule that matches any name of a tied one matches it.

    Raises:
        UnsupportedError: a rule matches no parameter.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    rules = [(re.compile(rule), trains) for rule, trains, _ in trainable.rules]
    for (rule, _), (_, _, pattern) in zip(rules, trainable.rules):  # noqa: B905 - not in Python 3.9
        if pattern and not any(rule.search(name) for own in names.values() for name in own):
            raise UnsupportedError(f"no parameter of the model matches {pattern!r} of training.trainable")
    return {own[0] for own in names.values() if _trains(own, rules, trainable.otherwise)}


def owning_modules(names: set[str]) -> list[str]:
    """Return the paths of the modules that own parameters, sorted."""
    return sorted({name.rpartition(".")[0] for name in names})


def _trains(names: list[str], rules: list[tuple[Any, bool]], otherwise: bool) -> bool:
    for rule, trains in reversed(rules):
        if any(rule.search(name) for name in names):
            return bool(trains)
    return otherwise
