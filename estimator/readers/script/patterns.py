"""The job file's patterns for which parameters train, from the parameters of a model one by one."""

import re
from collections.abc import Mapping

_NUMBER = re.compile(r"\.\d+(?=\.)")


def trainable_patterns(requires: Mapping[str, bool]) -> list[str]:
    """Return ``training.trainable`` for a model: a few names or patterns, ``!`` for what is frozen; empty: all train.

    Args:
        requires: whether each parameter trains, by its name.
    """
    if all(requires.values()):
        return []
    if not any(requires.values()):
        return ["!*"]
    trained, frozen = (_names(requires, wanted) for wanted in (True, False))
    if len(trained) <= len(frozen):
        return trained
    return [f"!{name}" for name in frozen]


def _names(requires: Mapping[str, bool], wanted: bool) -> list[str]:
    """Return names of modules, parameters and patterns that cover exactly the parameters with one answer."""
    modules: dict[str, bool] = {}
    for name, value in requires.items():
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            prefix = ".".join(parts[:length])
            modules[prefix] = modules.get(prefix, True) and value is wanted
    whole = [name for name in modules if modules[name] and not _has_whole_parent(name, modules)]
    by_pattern: dict[str, list[str]] = {}
    for name in whole:
        by_pattern.setdefault(_NUMBER.sub(".*", f".{name}.")[1:-1], []).append(name)
    found: list[str] = []
    for pattern, names in by_pattern.items():
        is_exact = "*" in pattern and len(names) > 1 and _covers_only(pattern, requires, wanted)
        found += [pattern if requires.get(names[0]) is not None else f"{pattern}.*"] if is_exact else names
    return found


def _has_whole_parent(name: str, modules: Mapping[str, bool]) -> bool:
    parent = name.rpartition(".")[0]
    return bool(parent) and modules[parent]


def _covers_only(pattern: str, requires: Mapping[str, bool], wanted: bool) -> bool:
    expression = re.compile(r"\d+".join(map(re.escape, pattern.split("*"))) + r"(\..*)?")
    return all(value is wanted for name, value in requires.items() if expression.fullmatch(name))
