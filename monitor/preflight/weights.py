"""Whether all files of a model are in a folder: each shard, whole; the config; a tokenizer."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramtop.estimator.paths import is_file

_WEIGHTS = (
    ("model.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
"""A single file, or the index of several: in the order in which transformers takes them (modeling_utils.py)."""
_TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model"),
    *("tekken.json", "tokenizer_config.json", "preprocessor_config.json"),
)
_HEADER_LIMIT = 100_000_000
"""safetensors' own limit of its header's length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """What a folder has of a model."""

    config: bool
    tokenizer: bool
    shards: int
    """Files of weights that there should be; 0: neither weights nor an index of them are there."""
    missing: tuple[str, ...]
    """Names of those that are not there."""
    broken: tuple[str, ...]
    """Names of those that are there in part, and why that is known."""
    weight_bytes: int
    """Of what is there."""
    total_bytes: int | None
    """What there should be, where an index says so."""

    @property
    def complete(self) -> bool:
        """Config and weights are whole; a tokenizer may come from elsewhere."""
        return self.config and self.shards > 0 and not self.missing and not self.broken


def look_into(folder: Path, *, single: tuple[str, ...] = ()) -> ModelFolder:
    """What is there.

    Args:
        folder: with a config.json, as transformers saves it.
        single: other names for a single file of weights, which are looked for first.

    Raises:
        OSError: an index cannot be read.
    """
    names, total = _named(folder, single)
    missing = tuple(name for name in names if not is_file(folder / name))
    present = [name for name in names if name not in missing]
    faults = {name: fault for name in present if (fault := _fault(folder / name))}
    return ModelFolder(
        config=is_file(folder / "config.json"),
        tokenizer=any(is_file(folder / name) for name in _TOKENIZERS),
        shards=len(names),
        missing=missing,
        broken=tuple(f"{name} ({fault})" for name, fault in faults.items()),
        weight_bytes=sum((folder / name).stat().st_size for name in present),
        total_bytes=total,
    )


def _named(folder: Path, single: tuple[str, ...]) -> tuple[list[str], int | None]:
    """Names of the files of weights, and what they hold in all."""
    for name in single:
        if is_file(folder / name):
            return [name], None
    for file, index in _WEIGHTS:
        if is_file(folder / file):
            return [file], None
        if is_file(folder / index):
            return _from_index(folder / index)
    return [], None


def _from_index(path: Path) -> tuple[list[str], int | None]:
    try:
        index: Any = json.loads(path.read_text(encoding="utf-8"))
        names = sorted(set(map(str, index["weight_map"].values())))
    except (ValueError, KeyError, TypeError, AttributeError):
        return [path.name], None  # counted as a file that is broken
    total = (index.get("metadata") or {}).get("total_size")
    return names, total if isinstance(total, int) else None


def _fault(path: Path) -> str | None:
    """What shows that a file is not whole; None: nothing does."""
    size = path.stat().st_size
    if size == 0:
        return "empty"
    if path.suffix == ".json":
        return "no index of shards"
    if path.suffix != ".safetensors":
        return None
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_HEADER_LIMIT, size):
            return "no safetensors header"
        try:
            header: Any = json.loads(file.read(length))
            end = max((part["data_offsets"][1] for name, part in header.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return "no safetensors header"
    whole = 8 + length + int(end)
    return f"{size:,} of {whole:,} bytes" if size < whole else None
