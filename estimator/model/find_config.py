"""Finds the config of a job's model: inline, in a folder, in the Hugging Face cache, or built in. No network access."""

import difflib
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..common.errors import InputError
from ..common.limits import decode_json
from ..common.paths import expand_user, is_file, is_folder
from ..common.records import replace
from ..common.untrusted_files import MAX_CONFIG_BYTES, check_nesting, read_file
from ..job.job_file.load_and_save import model_code, names_user_code
from ..job.settings import ModelSpec, Task
from .read_architecture import usual_task

_PARTS = re.compile(r"[a-z]+\d*(?:\.\d+)?|\d+(?:\.\d+)?[a-z]*")
_NOT_IN_KEYS = re.compile(r"[^a-z0-9]")
_OTHER_KINDS = (
    (
        "diffusion",
        re.compile(
            r"\b(flux|stable-?diffusion|sdxl|sd-?(1\.5|2\.1|3(\.5)?)|pixart|kandinsky|controlnet|wan2|hunyuan-?(video|dit)|"
            r"cogvideo|ltx|qwen-image|z-image|unet)"
        ),
    ),
    (
        "speech",
        re.compile(
            r"\b(whisper|wav2vec|hubert|wavlm|parakeet|canary|speecht5|bark|xtts|kokoro|musicgen|seamless|encodec)"
        ),
    ),
    (
        "vision",
        re.compile(
            r"\b(resnet|resnext|vit\b|vit-|deit|swin|convnext|efficientnet|mobilenet|densenet|vgg|yolo|detr|segformer|sam2?\b|"
            r"dino|clip|siglip|mask2?-?r?-?cnn|mask2former|unet|beit|maskformer|depth-anything|timm)"
        ),
    ),
    (
        "vision-language",
        re.compile(r"\b(llava|blip|idefics|paligemma|internvl|minicpm-v|florence|pixtral|molmo|smolvlm)"),
    ),
)
"""Models that are no text models, by the beginnings of parts of their names."""


def other_kind(name: str) -> str | None:
    """Return the kind of model that a name stands for if it is no text model: diffusion, speech, vision; else None."""
    word = name.rpartition("/")[2].casefold().replace("_", "-")
    return next((kind for kind, pattern in _OTHER_KINDS if pattern.search(word)), None)


def instead_of_other_kind(name: str) -> str | None:
    """Return the sentence for a model that is no text model, with what to do instead; None: it may be one."""
    kind = other_kind(name)
    if kind is None:
        return None
    return (
        f"{name} is a {kind} model that is not known by name; vramtop rehearse -- python train.py runs "
        "your own script without a GPU and predicts its memory"
    )


def similar_names(text: str, names: Iterable[str], *, most: int) -> tuple[str, ...]:
    """Return the names that a text may mean, the likeliest first.

    Every part of the text must be in the name, in any order; if that holds for none, names that look alike are taken.

    Args:
        text: what was typed.
        names: all names.
        most: maximum number of names that are returned.
    """
    keys = {name: _key(name) for name in names}
    wanted, parts = _key(text), [_key(part) for part in _PARTS.findall(text.casefold())]
    found = [name for name, key in keys.items() if parts and (wanted in key or all(part in key for part in parts))]
    if not found:
        near = difflib.get_close_matches(wanted, list(keys.values()), n=most, cutoff=0.6)
        return tuple([name for key in near for name in keys if keys[name] == key][:most])
    return tuple(sorted(found, key=lambda name: _distance(name, wanted))[:most])


def _distance(name: str, wanted: str) -> tuple[bool, bool, int, str]:
    """Return how far a name is from a text: ``llama3`` begins llama-3-8b, not llama-30b."""
    key, begins = _key(name), re.match(r"[\W_]*".join(wanted) + r"(?!\d)", name.casefold())
    return key != wanted, not begins, len(key), key


def _key(name: str) -> str:
    """Return letters and digits only."""
    return _NOT_IN_KEYS.sub("", name.casefold())


_TUNING_SUFFIXES = re.compile(
    r"-(instruct|thinking|chat|it|pt|hf|unsloth|bnb|[48]bit|2507|awq|gptq|int[48]|w4a16|fp8|dynamic)(?=-|$)"
)
"""Parts of a name that state how or when a model was fine-tuned or quantized, not its architecture."""
_QUANTIZED_NAMES: tuple[tuple[re.Pattern[str], dict[str, Any]], ...] = (
    (
        re.compile(r"-bnb-4bit\b"),
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    ),
    (re.compile(r"-bnb-8bit\b"), {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    (re.compile(r"-(gptq-int8|int8)\b"), {"quant_method": "gptq", "bits": 8}),
    (re.compile(r"-(gptq|w4a16)\b"), {"quant_method": "gptq", "bits": 4}),
    (re.compile(r"-awq\b"), {"quant_method": "awq", "bits": 4}),
    (re.compile(r"-fp8\b"), {"quant_method": "fp8"}),
)
"""``quantization_config`` by the name of a quantized copy, whose own config is not here."""
PIPELINE = "model_index.json"
"""File in which a pipeline of diffusers names its parts."""
_LABEL_NAMES = ("id2label", "label2id", "num_labels", "_num_labels")
_BASE_SUFFIX_PREFIXES = ("qwen", "deepseek")
"""Models whose pretrained variant has the suffix ``-base``."""


class UnknownModelError(InputError):
    """The model's config is not on this machine; a program that loads it can still be rehearsed."""


class ResolvedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model and its config."""

    config: Mapping[str, Any]
    """The fields of a Hugging Face config.json; empty if the model is code, which must run to give its config."""
    source: Literal["inline", "folder", "cache", "built-in", "code"]
    where: str
    """Name of the config in error messages: a path, a key of the job file, a built-in name."""
    label: str
    """Display name."""
    code: Mapping[str, Any] | None = None
    """Code that a worker may run besides the installed libraries: ``folder``, and ``model`` or ``remote``."""


class BuiltInModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that vramtop knows by name."""

    id: str
    """Hub id."""
    label: str
    """Display name."""
    parameters: int
    """Published parameter count with the head of its usual task."""
    aliases: tuple[str, ...] = ()
    language_part: bool = False
    """It is the language part of the model with that id, whose other parts are not counted."""
    fields: dict[str, Any] = msgspec.field(name="config")
    nulls: tuple[str, ...] = ()
    """Fields that are null, which TOML cannot express."""

    @property
    def config(self) -> dict[str, Any]:
        """The fields of a Hugging Face config.json."""
        return {**self.fields, **dict.fromkeys(self.nulls)}

    @property
    def task(self) -> Task:
        """The task that it is usually trained for."""
        return usual_task(self.config)

    @property
    def ids(self) -> tuple[str, ...]:
        """Hub ids that find it: its own, unless it is only a part of the model with that id."""
        return () if self.language_part else (self.id,)

    @property
    def names(self) -> tuple[str, ...]:
        """Names to type, the usual one first."""
        return tuple(name.replace(" ", "-").casefold() for name in (self.label, *self.aliases))

    @property
    def dtype(self) -> str | None:
        """Type of the weights as the config states it; None: it states none."""
        return self.config.get("torch_dtype")

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in that type; in bfloat16 if the config states none."""
        return self.parameters * (4 if self.dtype == "float32" else 2)


def resolve_model(spec: ModelSpec, *, environ: Mapping[str, str] | None = None, folders: bool = True) -> ResolvedModel:
    """Return the config of a job's model.

    Tried in this order: inline, a folder, the Hugging Face cache, the built-in models; a folder that is not here may be
    called like one of those.

    Args:
        spec: the job's model.
        environ: environment with HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME; this process's by default.
        folders: the model may be a folder; False if a name is relative to an unknown folder.

    Raises:
        InputError: none of these places has such a model, or its config.json is broken.
    """
    found = _resolve(spec, os.environ if environ is None else environ, folders=folders)
    if spec.num_labels is not None and found.config:
        # the names that a config gives to its labels decide their number otherwise
        unnamed = {key: value for key, value in found.config.items() if key not in _LABEL_NAMES}
        found = replace(found, config={**unnamed, "num_labels": spec.num_labels})
    if spec.trust_remote_code and found.source in ("folder", "cache"):
        return replace(found, code={"folder": str(Path(found.where).resolve().parent), "remote": True})
    return found


def _resolve(spec: ModelSpec, environ: Mapping[str, str], *, folders: bool) -> ResolvedModel:
    if spec.config is not None:
        label = spec.id or f"{spec.config.get('model_type', 'inline')} model"
        return ResolvedModel(config=spec.config, source="inline", where="model.config", label=label)
    if not spec.id:
        raise InputError("no model given; set model.id, or write its config under [model.config]")
    if names_user_code(spec.id):
        code = model_code(spec.id, spec.code_folder)
        return ResolvedModel(config={}, source="code", where=spec.id, label=spec.id, code=code)
    folder = _from_folder(spec.id) if folders else None
    return folder or _from_cache(spec.id, environ) or _from_built_in(spec.id, environ)


@functools.cache
def built_in_models() -> tuple[BuiltInModel, ...]:
    """Return every built-in model, family by family."""
    text = Path(__file__).with_name("models.toml").read_bytes()
    return msgspec.toml.decode(text, type=_ModelsFile).model


def find_built_in(name: str) -> BuiltInModel | None:
    """Return the built-in model for a name: hub id, its last part, or a tuned variant, in upper or lower case."""
    index, keys = _models_by_name(), _lookup_keys(name)
    found = next((index[key] for key in keys if key in index), None)
    if found is not None or "/" in name:  # another publisher's tiny-llama is not TinyLlama
        return found
    return next((model for key in keys if (model := _models_by_key().get(_key(key))) is not None), None)


def instead_of_model(name: str) -> str | None:
    """Return what to do instead of a model that is not known by name; None: it may be misspelled."""
    if "gguf" in name.lower():
        return f"{name}: GGUF files run in llama.cpp, which vramtop does not support; give the original model"
    part = next((found for key in _lookup_keys(name) if (found := find_built_in(f"{key}-text"))), None)
    if part is not None:
        text = next(word for word in part.names if word.endswith("-text"))
        return f"{name} is multimodal; only its text part is known by name: {text}"
    return instead_of_other_kind(name)


def search_models(text: str, *, most: int = 3) -> tuple[str, ...]:
    """Return the built-in models that a text may mean, by names as people type them, the likeliest first."""
    return tuple(dict.fromkeys(similar_names(text, _models_by_name(), most=most)))


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder in which huggingface_hub stores downloaded models."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(variable):
            return expand_user(environ[variable])
    if environ.get("HF_HOME"):
        return expand_user(environ["HF_HOME"]) / "hub"
    cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME') or '~'}/.cache"
    return expand_user(cache) / "huggingface" / "hub"


def cached_model(name: str, environ: Mapping[str, str]) -> Path:
    """Return the folder of a model in the cache of huggingface_hub."""
    return hub_cache(environ) / f"models--{name.replace('/', '--')}"


def _from_folder(name: str) -> ResolvedModel | None:
    path = expand_user(name)
    with suppress(OSError, ValueError):  # no such path, or too long to be one
        try:
            (path / "config.json").stat()
        except PermissionError as error:
            raise InputError(f"{error.filename or name}: permission denied") from None
    return _read_folder(name, path)


def _read_folder(name: str, path: Path) -> ResolvedModel | None:
    if is_file(path):
        return ResolvedModel(
            config=read_config(path), source="folder", where=str(path), label=path.resolve().parent.name
        )
    is_path = name.startswith((".", "/", "~")) or name.endswith(".json")
    if not is_folder(path):
        if is_path and (name.endswith(".json") or find_built_in(name) is None):
            raise UnknownModelError(
                f"{name}: no such folder or file; model.id must be a model or a folder with a config.json"
            )
        return None
    file = path / "config.json"
    if is_file(file):
        return ResolvedModel(config=read_config(file), source="folder", where=str(file), label=path.resolve().name)
    if is_file(path / "adapter_config.json"):
        base = read_config(path / "adapter_config.json").get("base_model_name_or_path")
        raise InputError(f"{name} holds an adapter, not a model; set model.id to its base model ({base})")
    if is_path:
        raise InputError(f"{name} has no config.json; give the folder that save_pretrained or a hub download wrote")
    return None  # a folder that happens to be called like a model


def part_folders(index: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the folders of the networks of a pipeline, by its model_index.json: the others hold no weights."""
    has_class = (name for name, kind in index.items() if isinstance(kind, list) and len(kind) == 2 and kind[1])
    return tuple(name for name in has_class if re.fullmatch(r"(unet|transformer|vae|text_encoder)(_\d)?", name))


def looks_like_hub_id(name: str) -> bool:
    """Return True if a name has the form ``organisation/model``."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) is not None


def _from_cache(name: str, environ: Mapping[str, str]) -> ResolvedModel | None:
    for snapshot in cached_snapshots(name, environ):
        file = snapshot / "config.json"
        if is_file(file):
            label = name.rpartition("/")[2]
            return ResolvedModel(config=read_config(file), source="cache", where=str(file), label=label)
    return None


def cached_snapshots(name: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders of a model in the Hugging Face cache: that of ``main``, then the others, latest first."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        return
    repository = cached_model(name, environ)
    folder = repository / "snapshots"
    try:
        revision = read_file(repository / "refs" / "main").decode().strip()
        if re.fullmatch(r"[\w.-]+", revision):
            yield folder / revision
    except (OSError, UnicodeDecodeError):
        pass  # no such branch was downloaded
    try:
        yield from sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return


def _from_built_in(name: str, environ: Mapping[str, str]) -> ResolvedModel:
    found = find_built_in(name)
    if found is not None:
        words = name.casefold()
        quantized = next((stated for pattern, stated in _QUANTIZED_NAMES if pattern.search(words)), None)
        config = {**found.config, "quantization_config": quantized} if quantized else found.config
        fused = config.get("model_type") == "phi3" and config.get("partial_rotary_factor", 1.0) == 1.0
        if fused and words.startswith("unsloth/"):  # whose copies of Phi-3 and Phi-4 have Llama's layers
            config = {**config, "model_type": "llama"}
        return ResolvedModel(config=config, source="built-in", where=found.id, label=Path(name).name)
    if (sentence := instead_of_model(name)) is not None:
        raise UnknownModelError(sentence)
    near = search_models(_lookup_keys(name)[-1])
    examples = ", ".join(model.id for model in built_in_models()[:4])
    hint = f"did you mean {', '.join(near)}?" if near else f"built-in models include {examples}"
    raise UnknownModelError(
        f"no model {name!r}: not a folder with a config.json, not in the Hugging Face cache ({hub_cache(environ)}), "
        f"not built in; {hint}"
    )


def read_config(path: Path) -> dict[str, Any]:
    """Return the fields of a config.json.

    Raises:
        InputError: the file cannot be read, or is not a JSON object.
    """
    try:
        config = decode_json(read_file(path, MAX_CONFIG_BYTES), dict[str, Any])
        check_nesting(config)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: not a JSON object: {error}") from None
    return config


class _ModelsFile(msgspec.Struct, forbid_unknown_fields=True):
    model: tuple[BuiltInModel, ...]


@functools.cache
def _models_by_name() -> dict[str, BuiltInModel]:
    return {_lookup_keys(word)[-1]: model for model in built_in_models() for word in (*model.names, *model.ids)}


@functools.cache
def _models_by_key() -> dict[str, BuiltInModel | None]:
    """Return the models by letters and digits alone, as in ``llama3.1:8b``; None: two models share them."""
    models: dict[str, BuiltInModel | None] = {}
    for name, model in _models_by_name().items():
        key = _key(name)
        models[key] = model if models.get(key, model) is model else None
    return models


def _lookup_keys(name: str) -> tuple[str, ...]:
    """Return the keys of a name: its last part in lower case, and that without the words for fine-tuning.

    ModelScope's folders have ``___`` for a dot (its ``get_model_masked_directory``).
    """
    last = name.rstrip("/").rpartition("/")[2].casefold().replace(" ", "-").replace("___", ".").removeprefix("meta-")
    bare = _TUNING_SUFFIXES.sub("", last)
    return (last, bare.removesuffix("-base") if bare.startswith(_BASE_SUFFIX_PREFIXES) else bare)
