"""The row of an optimizer that a script, a tool or a trainer names, with its keyword arguments."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from .optimizer import Optimizer, Options, Variant
from .table import LISTED_LIBRARIES, OPTIMIZERS, UNKNOWN


class _NotKnown:
    """A keyword argument that is given, whose value is not known."""

    def __repr__(self) -> str:
        return "?"


NOT_KNOWN: Final = _NotKnown()
"""Stands for the value of a keyword argument that only the running script knows."""
_LIBRARY_ALIASES = {"bnb": "bitsandbytes", "optim": "torch", "ao": "torchao", "hf": "transformers", "ds": "deepspeed"}
"""Usual names of imported libraries."""
_SYNONYMS = {"max_precondition_dim": "max_precond_dim", "max_preconditioner_dim": "max_precond_dim"}
"""Options that libraries name differently."""


_LAYERWISE = "_layerwise"
"""End of the Trainer's names of optimizers that step in the backward pass."""
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_MAX_WORD = 100


class OptimizerChoice(Struct, frozen=True, kw_only=True):
    """The optimizer that a name stands for."""

    name: str
    """Value of ``training.optimizer``; ``unknown``, or ``module:Class`` of a known library, where no row fits."""
    options: Options = field(default_factory=dict)
    """Value of ``training.optimizer_options``: those that differ from the row's defaults."""
    in_backward: bool = False
    """It applies each gradient as it appears: ``training.optimizer_in_backward``."""
    sentence: str | None = None
    """Sentence about what is uncertain; None: nothing is."""
    direction: Literal["no", "less", "more", "either"] = "no"
    """Direction in which the states may differ from the row's, for ``findings.mark_uncertain``."""

    def __repr__(self) -> str:
        return self.name

    @property
    def known(self) -> bool:
        """A row of the table stands for it."""
        return self.name != UNKNOWN and self.name in OPTIMIZERS


def optimizer_by_class(name: str, options: Mapping[str, Any] | None = None) -> OptimizerChoice:
    """Return the optimizer of a class that a script calls.

    Args:
        name: the class, as far as its library is known: ``torch.optim.SGD``, ``bnb.optim.AdamW8bit``, ``AdamW``.
        options: its keyword arguments; ``NOT_KNOWN`` for values that are not known.
    """
    row, doubt = _row_of_class(name)
    if row is None:
        return _unlisted(name, options or {}, f"{doubt}")
    choice = _choose(row, name, options or {})
    if doubt is None or choice.sentence is not None:
        return choice
    return OptimizerChoice(name=choice.name, options=choice.options, sentence=doubt, direction="either")


def _unlisted(name: str, options: Mapping[str, Any], sentence: str) -> OptimizerChoice:
    """Return a class without a row: of a widely used library ``module:Class``, which the job's program steps."""
    module, _, last = name.replace(":", ".").rpartition(".")
    if module.partition(".")[0] not in LISTED_LIBRARIES or not _CLASS.fullmatch(f"{module}:{last}"):
        return OptimizerChoice(name=UNKNOWN, sentence=sentence)
    plain = {
        option: value
        for option, value in options.items()
        if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) < _MAX_WORD)
    }
    return OptimizerChoice(name=f"{module}:{last}", options=plain, sentence=sentence)


def optimizer_by_trainer_name(name: str, arguments: Mapping[str, Any] | str | None = None) -> OptimizerChoice:
    """Return the optimizer of a value of ``TrainingArguments.optim``.

    Args:
        name: the value, such as ``adamw_torch_fused``.
        arguments: ``optim_args``: a table, or text such as ``rank=64, update_proj_gap=100``.
    """
    word = name.strip().rpartition(".")[2].lower()
    layerwise = word.endswith(_LAYERWISE)
    word = word.removesuffix(_LAYERWISE)
    row = next((row for row in OPTIMIZERS.values() if word in row.trainer_names), None)
    if row is None:
        return OptimizerChoice(name=UNKNOWN, sentence=f"the optimizer {name!r} is not known")
    given: Mapping[str, Any] = arguments or {} if not isinstance(arguments, str) else {}
    if isinstance(arguments, str):  # ``name=value, name=value``, as transformers reads ``optim_args``
        pairs = (part.partition("=") for part in arguments.replace(" ", "").split(",") if "=" in part)
        given = {option: value for option, _, value in pairs}
    return replace(_choose(row, name, given), in_backward=layerwise)


@lru_cache(maxsize=1)
def optimizer_arguments() -> tuple[str, ...]:
    """Return the names of all keyword arguments on which the choice of a row or its memory depends."""
    rows = OPTIMIZERS.values()
    return tuple(
        dict.fromkeys(name for row in rows for name in (*row.options, *(each.option for each in row.variants)))
    )


@lru_cache(maxsize=1)
def optimizer_class_names() -> frozenset[str]:
    """Return the last parts of the names of all classes that have a row: ``AdamW8bit``."""
    return frozenset(name.rpartition(".")[2] for row in OPTIMIZERS.values() for name in row.class_names)


@lru_cache(maxsize=1)
def _classes() -> dict[str, tuple[tuple[str, str], ...]]:
    """Return by class name in lower case the (library, row) pairs that have it."""
    found: dict[str, list[tuple[str, str]]] = {}
    for row in OPTIMIZERS.values():
        for name in row.class_names:
            found.setdefault(name.rpartition(".")[2].lower(), []).append((name.partition(".")[0], row.name))
    return {name: tuple(rows) for name, rows in found.items()}


def _row_of_class(name: str) -> tuple[Optimizer | None, str | None]:
    """Return the row of a class, and a sentence if it may be another one."""
    path = [part for part in name.replace(":", ".").split(".") if part]
    candidates = _classes().get(path[-1].lower(), ()) if path else ()
    library = path[0] if len(path) > 1 and path[0] not in {"F", "nn", "self", "cls"} else None
    library = _LIBRARY_ALIASES.get(library or "", library)
    if not candidates:
        return None, f"the optimizer {name} is not known"
    for owner, row in candidates:
        if library is None or owner == library:
            return OPTIMIZERS[row], None
    if any(owner == "torch" for owner, _ in candidates):  # everyone has a class Adam; what it does is anyone's guess
        return None, f"{name} is not torch's {path[-1]}, and is not known"
    owner, row = candidates[0]
    return OPTIMIZERS[row], f"{name} is counted like {owner}'s {path[-1]}"


def _choose(row: Optimizer, name: str, given: Mapping[str, Any]) -> OptimizerChoice:
    """Return the row that keyword arguments lead to, with the options that differ from its defaults."""
    given = {_SYNONYMS.get(option, option): value for option, value in given.items()}
    doubts: list[str] = []
    row, lesser = _follow_variants(row, name, given, doubts)
    options: dict[str, Any] = {}
    unsure = bool(doubts)
    for option, default in row.options.items():
        if option not in given:
            continue
        value = given[option]
        if value is NOT_KNOWN:
            counted = "its default" if isinstance(default, bool) else str(default)
            doubts.append(f"{name}({option}=...) is only known when the script runs; {counted} is counted")
            continue
        converted = _converted(value, default)
        if converted is not None and converted != default:
            options[option] = converted
    if not doubts:
        return OptimizerChoice(name=row.name, options=options)
    direction: Literal["less", "either"] = "less" if unsure and lesser else "either"
    return OptimizerChoice(name=row.name, options=options, sentence="; ".join(doubts), direction=direction)


def _follow_variants(row: Optimizer, name: str, given: Mapping[str, Any], doubts: list[str]) -> tuple[Optimizer, bool]:
    """Return the row after the variants that arguments select; the larger one, and True, where that is not known."""
    lesser = False
    for _ in range(4):
        variant = next(_selected(row, given), None)
        if variant is None:
            return row, lesser
        other = OPTIMIZERS[variant.row]
        if given[variant.option] is NOT_KNOWN:
            larger = max((other, row), key=_size)
            doubts.append(
                f"{name}({variant.option}=...) is only known when the script runs; {larger.description} is counted"
            )
            lesser = True
            if larger is row:
                return row, lesser
        row = other
    return row, lesser


def _selected(row: Optimizer, given: Mapping[str, Any]) -> Iterator[Variant]:
    for variant in row.variants:
        value = given.get(variant.option)
        if value is NOT_KNOWN or (bool(_as_python(value)) if variant.value is None else value == variant.value):
            yield variant


class _Reference(Struct, frozen=True):
    """A matrix of a block, to compare rows by."""

    name: str = "model.layers.*.mlp.up_proj.weight"
    shape: tuple[int, ...] = (4096, 4096)
    role: str = "mlp"
    linear: bool = True
    layered: bool = True


def _size(row: Optimizer) -> tuple[float, bool]:
    return (0.0 if row.paged or row.on_host else row.state_bytes(_Reference(), 4)), bool(row.copies)


def _as_python(value: Any) -> Any:
    """Return a value that may be written as text: ``0.9``, ``True``."""
    if not isinstance(value, str):
        return value
    word = value.strip().lower()
    if word in ("true", "yes"):
        return True
    if word in ("false", "no", "none", ""):
        return False
    try:
        number = float(word)
    except ValueError:
        return value
    return int(number) if number.is_integer() and abs(number) < 2**31 else number


def _converted(value: Any, default: Any) -> Any:
    """Return a value in the type of an option's default; None if it has another."""
    value = _as_python(value)
    if isinstance(default, bool):
        return bool(value)
    if isinstance(default, int):
        return int(value) if isinstance(value, int | float) and 1 <= value < 2**31 else None
    if isinstance(default, str | list):
        if isinstance(value, str):
            return value
        return [str(each) for each in value] if isinstance(value, list | tuple) else None
    return None
