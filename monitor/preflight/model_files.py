"""Files of a job's model: where they are, and whether they are complete."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from vramtop.estimator.common.limits import LimitError, decode_json
from vramtop.estimator.common.paths import expand_user, is_file, is_folder
from vramtop.estimator.common.untrusted_files import TooLargeError, open_file, read_file
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.load_and_save import names_user_code
from vramtop.estimator.job.rules.frameworks import FRAMEWORKS
from vramtop.estimator.model.find_config import cached_model, find_built_in


class ModelFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a model that a folder contains."""

    config: bool
    tokenizer: bool
    shards: int
    """Expected files of weights; 0: there are neither weights nor an index."""
    missing: tuple[str, ...]
    """Names of missing files."""
    broken: tuple[str, ...]
    """Names of incomplete files, each with the reason."""
    weight_bytes: int
    """Size of the existing files of weights."""
    total_bytes: int | None
    """Size of all weights according to the index; None: there is no index, or it does not state the size."""

    @property
    def complete(self) -> bool:
        """True if config and weights are complete; a tokenizer may come from elsewhere."""
        return self.config and self.shards > 0 and not self.missing and not self.broken


class ModelLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Location of a job's model."""

    folder: Path | None
    """Folder with its files; None: not in the cache."""
    hub_id: str | None
    """None: a folder of the user's own."""


def find_model_location(job: Job, environ: Mapping[str, str]) -> ModelLocation | None:
    """Return the location of the weights; None if the job has its config inline, or its model is code."""
    name = job.model.id
    if name is None or job.model.config is not None or names_user_code(name):
        return None
    path = expand_user(name)
    if is_folder(path) or name.startswith((".", "/", "~")) or name.endswith(".json"):
        return ModelLocation(folder=path.parent if name.endswith(".json") else path, hub_id=None)
    cached = _cached_snapshot(name, environ)
    built_in = find_built_in(name) if cached is None and "/" not in name else None
    hub_id = built_in.id if built_in else name
    return ModelLocation(folder=cached or _cached_snapshot(hub_id, environ), hub_id=hub_id)


_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_REVISION = re.compile(r"[\w.-]+")


def _cached_snapshot(name: str, environ: Mapping[str, str]) -> Path | None:
    """Return the cached snapshot of ``main``, which libraries load by default."""
    if not _HUB_ID.fullmatch(name):
        return None
    repository = cached_model(name, environ)
    try:
        revision = read_file(repository / "refs" / "main").decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    folder = repository / "snapshots" / revision
    return folder if _REVISION.fullmatch(revision) and is_folder(folder) else None


def inspect_model(location: ModelLocation, job: Job) -> ModelFolder | None:
    """Return the files of the model that are on the disk; None if there is no folder.

    Raises:
        OSError: an index cannot be read.
    """
    if location.folder is None:
        return None
    checkpoint_file = FRAMEWORKS[job.training.framework].checkpoint_file
    return inspect_model_folder(location.folder, single=(checkpoint_file,) if checkpoint_file else ())


_WEIGHTS = (
    ("model.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
"""A single file, or the index of several shards: in the order in which transformers does (modeling_utils.py)."""
_TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model"),
    *("tekken.json", "tokenizer_config.json", "preprocessor_config.json"),
)


def inspect_model_folder(folder: Path, *, single: tuple[str, ...] = ()) -> ModelFolder:
    """Return the files of a model in a folder.

    Args:
        folder: folder with a config.json, as transformers saves it.
        single: other names of a single file of weights, which are tried first.

    Raises:
        OSError: an index cannot be read.
    """
    names, total = _expected_files(folder, single)
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


def _expected_files(folder: Path, single: tuple[str, ...]) -> tuple[list[str], int | None]:
    """Return the names of the files of weights, and their total bytes if an index states them."""
    for name in single:
        if is_file(folder / name):
            return [name], None
    for file, index in _WEIGHTS:
        if is_file(folder / file):
            return [file], None
        if is_file(folder / index):
            return _from_index(folder / index)
    return [], None


_MAX_INDEX_BYTES = 24 * 2**20
"""An index of 91,000 weights (DeepSeek-V3) takes 9 MB."""


class _Metadata(msgspec.Struct):
    total_size: Any = None


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: _Metadata | None = None


def _from_index(path: Path) -> tuple[list[str], int | None]:
    try:
        index = decode_json(read_file(path, _MAX_INDEX_BYTES), _Index)
    except (TooLargeError, LimitError):
        return [path.name], None  # reported as a broken file
    total = index.metadata.total_size if index.metadata else None
    return sorted(set(index.weight_map.values())), total if isinstance(total, int) else None


_MAX_HEADER_BYTES = 16 * 2**20
"""safetensors itself allows 100 MB; a tensor takes about 100 bytes, and large models are split into shards."""


class _Tensor(msgspec.Struct):
    """One tensor of a safetensors header, or its ``__metadata__``, which has no offsets."""

    data_offsets: tuple[int, int] = (0, 0)


def _fault(path: Path) -> str | None:
    """Return why a file is incomplete; None: it looks complete."""
    size = path.stat().st_size
    if size == 0:
        return "empty"
    if path.suffix == ".json":
        return "no index of shards"
    if path.suffix != ".safetensors":
        return None
    with open_file(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_MAX_HEADER_BYTES, size):
            return "no safetensors header"
        try:
            header = decode_json(file.read(length), dict[str, _Tensor])
        except LimitError:
            return "no safetensors header"
    whole = 8 + length + max((tensor.data_offsets[1] for tensor in header.values()), default=0)
    return f"{size:,} of {whole:,} bytes" if size < whole else None
