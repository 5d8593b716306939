"""``vramtop models [WORD]``: list the models that are known by name."""

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.sizes import format_size
from vramtop.estimator.model.find_config import BuiltInModel, built_in_models, search_models
from vramtop.estimator.program.diffusion_models import DiffusionModel, diffusion_models
from vramtop.estimator.program.named_models import NamedModel, named_models

from ...draw.text_output import TextOutput, detect_output, format_table, truncate
from ..json_text import json_text

if TYPE_CHECKING:
    _Model: TypeAlias = BuiltInModel | NamedModel | DiffusionModel


def run(options: argparse.Namespace, _: Sequence[str] | None) -> int:
    """Print a line for each model; exit code 0.

    Raises:
        InputError: no model has such a name.
    """
    found = list(_named(options.word or ""))
    if not found:
        near = ", ".join(search_models(options.word))
        hint = f"did you mean {near}?" if near else "vramtop models lists all"
        raise InputError(f"no known model has {options.word!r} in its name; {hint}")
    if options.json:
        print(json_text({"schema": 1, "models": found}))
    else:
        print("\n".join(_lines(found, detect_output(ascii_only=options.ascii))))
    return 0


def _named(word: str) -> Iterator[dict[str, Any]]:
    """Yield the models whose id or name contains a word, each with the first name to type for it."""
    word = word.casefold().replace(" ", "-")
    models: tuple[_Model, ...] = (*built_in_models(), *named_models(), *diffusion_models())
    for model in models:
        names = [name.replace(" ", "-").casefold() for name in (model.label, *model.aliases)]
        fitting = [name for name in names if word in name]
        if fitting or word in model.id.casefold():
            yield _to_json((fitting or names)[0], model)


def _to_json(name: str, model: "_Model") -> dict[str, Any]:
    config = model.config if isinstance(model, BuiltInModel) else model.spec.config or {}
    dtype = config.get("torch_dtype", config.get("dtype"))
    parameters = model.parameters or 0  # every model of the files has a figure
    return {
        "name": name,
        "id": model.id,
        "label": model.label,
        "aliases": list(model.aliases),
        "parameters": parameters,
        "weight_bytes": parameters * (4 if dtype == "float32" else 2),
        "dtype": dtype,
        "family": config["model_type"],
    }


_HEAD = ("NAME", "PARAMETERS", "WEIGHTS", "DTYPE", "FAMILY", "ID")
_ALIGNED = "<>><<<"


def _lines(found: Sequence[dict[str, Any]], output: TextOutput) -> Iterator[str]:
    for line in format_table([_HEAD, *map(_row, found)], _ALIGNED):
        yield line if output.unlimited_width else truncate(line, output.width)


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    millions = round(model["parameters"] / 1e6)
    return (
        model["name"],
        f"{millions / 1000:.1f} B" if millions >= 1000 else f"{millions} M",
        format_size(model["weight_bytes"]),
        model["dtype"] or "as bfloat16",
        model["family"],
        model["id"],
    )
