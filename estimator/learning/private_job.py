"""A job without what names something of the user's: folders, models, classes, parameters, run names, keys, URLs.

A text is kept only if it is one of the words that vramtop itself offers for that setting, the number of a version, or a
word of a public config. Everything else is removed, and its digest tells two jobs apart that differ in it.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args, get_origin

import msgspec

from ..common import VramtopError
from ..job import Job, ModelSpec, find_gpu
from ..model import Architecture, built_in_models, find_built_in
from ..model.families import FAMILIES
from ..model.read_architecture import read_architecture
from .measurement import digest

_VERSION = re.compile(r"v?\d+(\.\d+)*")
_ALLOCATOR = re.compile(r"[\w:,.\[\]> ]*", re.ASCII)
"""``max_split_size_mb:512,expandable_segments:True`` (torch's notes on CUDA, PYTORCH_CUDA_ALLOC_CONF)."""
_WORKSPACE = re.compile(r"(:\d{1,9}:\d{1,9}){1,9}")
_DEVICE_SIZE = re.compile(r"\d+(\.\d+)? ?[KMGT]?i?B?")
_LAYER_WORDS = (
    "all-linear q_proj k_proj v_proj o_proj gate_proj up_proj down_proj qkv_proj gate_up_proj query_key_value dense "
    "dense_h_to_4h dense_4h_to_h c_attn c_proj c_fc fc1 fc2 out_proj lm_head embed_tokens query key value wq wk wv wo "
    "w1 w2 w3 q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj"
)
_PUBLIC_LAYERS = frozenset(_LAYER_WORDS.split())
"""Names of layers in public models."""
_MAX_LIST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateJob:
    """A job without what names something of the user's."""

    job: Job
    model: str
    """The model in words: its public name where vramtop knows it, else family and size."""
    shape: str
    """Digest of the model's architecture."""
    hidden: str
    """Digest of those settings that were removed and on which memory may depend; empty: there are none."""


def allocator_words(settings: str | None) -> str:
    """Return the allocator's settings as they are kept: keys and numbers; a digest of anything else."""
    text = (settings or "").strip()
    return text if _ALLOCATOR.fullmatch(text) else f"#{digest(text)}"


def release_number(version: str) -> str | None:
    """Return the number at the start of a version, without what its builder has added; None: there is none."""
    found = _VERSION.match(version)
    return found[0] if found else None


def private_job(job: Job, config: Mapping[str, Any] | None, *, parameters: int | None = None) -> PrivateJob:
    """Return a job without names.

    Args:
        job: the job.
        config: its model's config; None or empty: unknown, or the model is code.
        parameters: of the model; None: unknown.
    """
    removed: list[object] = []
    facts = _without_names(job, "", removed)
    arch = _architecture(config, job)
    public = public_config(config) if config else None
    if arch is not None and _architecture(public, job) != arch:
        removed.append("config")
    spec = msgspec.structs.replace(facts.model, config=public)
    shape = digest(sorted(asdict(arch).items(), key=str)) if arch else digest(job.model.id, config, parameters)
    return PrivateJob(
        job=msgspec.structs.replace(facts, model=spec),
        model=_label(job.model, arch, parameters),
        shape=shape,
        hidden=digest(*removed) if removed else "",
    )


def public_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a model's config, and the words that also occur in the configs of public models."""
    keys, words = _public_words()
    found = {}
    for key, value in config.items():
        if key in keys and (kept := _public_value(value, words)) is not None:
            found[key] = kept
    return found


def _public_value(value: Any, words: frozenset[str]) -> Any:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if value in words else None
    if isinstance(value, Mapping):
        return public_config(value) or None
    if isinstance(value, list | tuple) and len(value) <= _MAX_LIST:
        kept = [_public_value(each, words) for each in value]
        return None if None in kept else kept
    return None


@functools.cache
def _public_words() -> tuple[frozenset[str], frozenset[str]]:
    """Return the keys and the words in the configs of the built-in models."""
    keys, words = set[str](), set(FAMILIES)

    def add(value: Any) -> None:
        if isinstance(value, str):
            words.add(value)
        elif isinstance(value, Mapping):
            for key, each in value.items():
                keys.add(key)
                add(each)
        elif isinstance(value, list | tuple):
            for each in value:
                add(each)

    for model in built_in_models():
        add(model.config)
    keys.update(("num_labels", "dtype", "torch_dtype"))
    words.update(("float32", "bfloat16", "float16"))
    return frozenset(keys), frozenset(words)


def _without_names(table: Any, path: str, removed: list[object]) -> Any:
    """Return a table of a job without names; what memory may depend on is added to ``removed``."""
    changes = {}
    for each in msgspec.structs.fields(type(table)):
        name, value = f"{path}{each.encode_name}", getattr(table, each.name)
        kept = _kept(name, value, each.type, removed)
        if kept is not value:
            changes[each.name] = kept
    return msgspec.structs.replace(table, **changes) if changes else table


def _kept(name: str, value: Any, type_: Any, removed: list[object]) -> Any:
    """Return the value of a setting, or what is kept in its place."""
    if isinstance(value, msgspec.Struct):
        return type(value)() if name == "run" else _without_names(value, f"{name}.", removed)
    if isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
        return [_without_names(each, f"{name}.", removed) for each in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    if name in ("name", "model.id", "model.code_folder", "model.config"):
        return None
    if name == "target.gpu":
        return value if _is_known_gpu(value) else None
    if name == "software.cublas_workspace":
        return value if _WORKSPACE.fullmatch(value) else None
    if name.startswith("software.") and not _choices(type_):
        return release_number(value)
    choices = _choices(type_)
    texts = value if isinstance(value, list) else [value]
    if all(isinstance(text, str) and text in choices for text in texts):
        return value
    return _replacement(name, value, removed)


def _replacement(name: str, value: Any, removed: list[object]) -> Any:
    """Return what is kept in place of a name on which memory depends."""
    if name == "lora.targets" and _PUBLIC_LAYERS.issuperset(value):
        return value
    if name == "parallel.max_memory" and all(_is_device(key, size) for key, size in value.items()):
        return value
    if name == "training.optimizer_options":
        removed.extend(sorted((key, each) for key, each in value.items() if not isinstance(each, bool | int | float)))
        return {key: each for key, each in value.items() if isinstance(each, bool | int | float)} or None
    removed.append((name, str(value)))
    if name == "lora.targets":
        return [each if each in _PUBLIC_LAYERS else f"x{digest(each)}" for each in value]
    if name == "training.optimizer":
        return f"private:C{digest(value)}"
    return None


def _is_device(name: str, size: object) -> bool:
    return (name.isdigit() or name in ("cpu", "disk")) and bool(_DEVICE_SIZE.fullmatch(str(size)))


def _is_known_gpu(name: str) -> bool:
    try:
        find_gpu(name)
    except VramtopError:
        return False
    return True


@functools.cache
def _choices(type_: Any) -> frozenset[object]:
    """Return the words that a setting's type offers."""
    if get_origin(type_) is Literal:
        return frozenset(get_args(type_))
    words = set[object]()
    for each in get_args(type_):
        if isinstance(each, msgspec.Meta):
            words.update((each.extra or {}).get("choices", ()))
        elif get_args(each):
            words |= _choices(each)
    return frozenset(words)


def _architecture(config: Mapping[str, Any] | None, job: Job) -> Architecture | None:
    if not config:
        return None
    try:
        return read_architecture(config, job.model.task, where="config")
    except VramtopError:
        return None


def _label(spec: ModelSpec, arch: Architecture | None, parameters: int | None) -> str:
    built_in = find_built_in(spec.id) if spec.id and arch else None
    if built_in and arch and _outline(read_architecture(built_in.config, arch.task, where="config")) == _outline(arch):
        return built_in.label
    family = arch.family if arch and arch.family in FAMILIES else "own model"
    return family if parameters is None else f"{family} {_short_count(parameters)}"


def _outline(arch: Architecture) -> tuple[object, ...]:
    return arch.family, arch.layers, arch.hidden, arch.mlp_size, arch.heads, arch.kv_heads, arch.vocab


def _short_count(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
