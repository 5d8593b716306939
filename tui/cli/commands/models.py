"""``vramtop models [WORD]``: list the built-in models."""

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.sizes import format_size
from vramtop.estimator.model.find_config import BuiltInModel, built_in_models, search_models

from ...draw.text_output import TextOutput, detect_output, format_table, truncate
from ..json_text import json_text

if TYPE_CHECKING:
    from ..json_types import ModelJson, ModelsJson

_HEAD = ("NAME", "PARAMETERS", "WEIGHTS", "DTYPE", "FAMILY", "ID")
_ALIGNED = "<>><<<"


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print a line for each model; exit code 0.

    Raises:
        InputError: no model has such a name.
    """
    del launch
    found = list(_named(options.word or ""))
    if not found:
        near = ", ".join(search_models(options.word))
        hint = f"did you mean {near}?" if near else "vramtop models lists all"
        raise InputError(f"no built-in model has {options.word!r} in its name; {hint}")
    if options.json:
        listed: ModelsJson = {"schema": 1, "models": [_to_json(name, model) for name, model in found]}
        print(json_text(listed))
    else:
        print("\n".join(_lines(found, detect_output(ascii_only=options.ascii))))
    return 0


def _named(word: str) -> Iterator[tuple[str, BuiltInModel]]:
    """Yield the models whose id or name contains a word, each with the first name to type for it."""
    word = word.casefold().replace(" ", "-")
    for model in built_in_models():
        fitting = [name for name in model.names if word in name]
        if fitting or word in model.id.casefold():
            yield (fitting or model.names)[0], model


def _lines(found: Sequence[tuple[str, BuiltInModel]], output: TextOutput) -> Iterator[str]:
    for line in format_table([_HEAD, *(_row(name, model) for name, model in found)], _ALIGNED):
        yield line if output.unlimited_width else truncate(line, output.width)


def _row(name: str, model: BuiltInModel) -> tuple[str, ...]:
    millions = round(model.parameters / 1e6)
    return (
        name,
        f"{millions / 1000:.1f} B" if millions >= 1000 else f"{millions} M",
        format_size(model.weight_bytes),
        model.dtype or "as bfloat16",
        model.config["model_type"],
        model.id,
    )


def _to_json(name: str, model: BuiltInModel) -> "ModelJson":
    return {
        "name": name,
        "id": model.id,
        "label": model.label,
        "aliases": list(model.aliases),
        "parameters": model.parameters,
        "weight_bytes": model.weight_bytes,
        "dtype": model.dtype,
        "family": model.config["model_type"],
    }
