"""Whether all files of a model are in a folder: each shard, whole; the config; a tokenizer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from vramtop.estimator.common.paths import is_file
from vramtop.estimator.common.untrusted_files import TooLargeError, open_file, read_file

_WEIGHTS = (
    ("model.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
"""A single file, or the index of several: in the order in which transformers takes them (modeling_utils.py)."""
_TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model"),
    *("tekken.json", "tokenizer_config.json", "preprocessor_config.json"),
)
_HEADER_LIMIT = 16 * 2**20
"""safetensors' own limit is 100 MB; a tensor takes some 100 bytes, and models of many files are cut into shards."""
_INDEX_LIMIT = 24 * 2**20
"""Of an index: 91,000 weights (DeepSeek-V3) take 9 MB."""


class _Metadata(msgspec.Struct):
    total_size: Any = None


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: _Metadata | None = None


class _Tensor(msgspec.Struct):
    """Or the header's ``__metadata__``, which has no offsets."""

    data_offsets: tuple[int, int] = (0, 0)


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


def inspect_model_folder(folder: Path, *, single: tuple[str, ...] = ()) -> ModelFolder:
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
        index = msgspec.json.decode(read_file(path, _INDEX_LIMIT), type=_Index)
    except (TooLargeError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [path.name], None  # counted as a file that is broken
    total = index.metadata.total_size if index.metadata else None
    return sorted(set(index.weight_map.values())), total if isinstance(total, int) else None


def _fault(path: Path) -> str | None:
    """What shows that a file is not whole; None: nothing does."""
    size = path.stat().st_size
    if size == 0:
        return "empty"
    if path.suffix == ".json":
        return "no index of shards"
    if path.suffix != ".safetensors":
        return None
    with open_file(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_HEADER_LIMIT, size):
            return "no safetensors header"
        try:
            header = msgspec.json.decode(file.read(length), type=dict[str, _Tensor])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "no safetensors header"
    whole = 8 + length + max((tensor.data_offsets[1] for tensor in header.values()), default=0)
    return f"{size:,} of {whole:,} bytes" if size < whole else None
