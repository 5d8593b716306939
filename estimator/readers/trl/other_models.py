"""Reads the models that TRL's trainers hold beside the trained one: references, teachers, reward and value models."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...common import InputError
from ...job.rules import DTYPE_NAMES
from ..source import (
    MODEL_STATES,
    FilesystemView,
    FindingCollector,
    LayeredSettings,
    Setting,
    as_word,
    framework_with_version,
    is_at_least,
    table_of_setting,
)
from .methods import Method

_FUNCTIONS = {"accuracy_reward", "reasoning_accuracy_reward", "think_format_reward", "get_soft_overlong_punishment"}
"""TRL's own reward functions, which hold no model (``trl/rewards``)."""
_SHARDED_BY_FSDP_SINCE = {
    "dpo": (0, 16),
    "grpo": (0, 18),
    "rloo": (0, 22),
    "online-dpo": (0, 24),
    "xpo": (0, 24),
    "nash-md": (0, 24),
    "kto": (1, 3),
}
"""TRL's version since which a method's trainer shards its reference under FSDP (``prepare_fsdp``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What decides which models there are, and how they lie in memory."""

    adapters: bool
    """Adapters are trained: the model with its adapters off is its own reference."""
    sharding: Literal["zero3", "fsdp"] | None
    """What shards the trained weights."""
    filesystem: FilesystemView
    """Where paths of the program lead."""
    held: Sequence[tuple[Mapping[str, Any], str]] = ()
    """Models that the script itself loads and keeps, and where."""

    def holds(self, role: str) -> bool:
        """Return True if the script itself loads a model of a role."""
        return any(model["role"] == role for model, _ in self.held)


def read_other_models(
    method: Method,
    settings: LayeredSettings,
    versions: Mapping[str, str],
    findings: FindingCollector,
    setup: Setup,
) -> None:
    """Record ``other_models``, all of them together, and what may be held besides."""
    models, origins = list[dict[str, Any]](), list[str]()
    found = (
        *_reference(method, settings, versions, setup),
        *_teacher(method, settings, findings, setup),
        *_scorers(method, settings, findings, setup),
    )
    by_role = {model["role"]: model for model, _ in found}
    for model, origin in setup.held:
        models.append({**({"sharded": True} if by_role.get(model["role"], {}).get("sharded") else {}), **model})
        origins.append(origin)
    for model, origin in found:
        if not setup.holds(model["role"]):
            models.append(model)
            origins.append(origin)
    if models:
        findings.record("other_models", models, "; ".join(dict.fromkeys(origins)), written=False)
    _note_casts(method, settings, versions, findings, setup)
    if method.partly_known:
        findings.warn(
            f"TRL's {method.name} is known here in part: further models and passes that it has are not counted."
        )
        findings.add_uncertainty("more", "weights", "activations", "logits")
    if method.trains_value_model:
        findings.warn(
            f"TRL's {method.name} trains a value model besides, whose states and activations are not counted."
        )
        findings.add_uncertainty("more", *MODEL_STATES, "activations")


def _note_casts(
    method: Method,
    settings: LayeredSettings,
    versions: Mapping[str, str],
    findings: FindingCollector,
    setup: Setup,
) -> None:
    """Note weights that the trainer casts to fp32, which are counted as they are loaded."""
    quantized = settings.is_true("load_in_4bit") or settings.is_true("load_in_8bit")
    until = method.upcasts_quantized_until
    if setup.adapters and quantized and setup.sharding is None and until is not None:
        trl = framework_with_version("trl", versions)
        if is_at_least("trl", until, versions):
            origin = f"{trl} gives adapters over quantized weights 16 bits, and casts nothing to fp32"
            findings.record("lora.kbit_preparation", False, origin, written=False)
            findings.record("lora.adapter_dtype", "bf16", origin, written=False)
        else:
            origin = f"{trl} prepares a quantized model for {method.name} (prepare_model_for_kbit_training)"
            findings.record("lora.kbit_preparation", True, origin, written=False)
    cast = settings.find_true("cast_lm_head_to_fp32")
    if cast is not None:
        findings.warn(f"{cast.origin}: the head is counted in the type of the other weights.")
        findings.add_uncertainty("more", "weights", "logits")


_Found = Iterator[tuple[dict[str, Any], str]]


def _reference(
    method: Method,
    settings: LayeredSettings,
    versions: Mapping[str, str],
    setup: Setup,
) -> _Found:
    """Yield the frozen copy of the model, where the trainer makes or is given one."""
    given = settings.find("ref_model", "ref_model_name_or_path")
    precomputed, forced = settings.is_true("precompute_ref_log_probs"), settings.is_true("force_use_ref_model")
    settings.find("sync_ref_model", "ref_model_sync_steps", "ref_model_mixup_alpha", "reference_free")  # no memory
    if method.reference == "none" or precomputed or (setup.adapters and given is None and not forced):
        return
    trl = framework_with_version("trl", versions)
    origin = f"{trl} holds a reference model for {method.name}"
    beta = settings.find("beta")
    if method.reference == "if-beta" and beta is not None:
        if _is_zero(beta):
            return
        origin = f"{origin} with beta {beta.value} ({beta.origin})"
    if given is not None:
        origin = f"{origin} ({given.origin})"
    model: dict[str, Any] = {"role": "reference"}
    if given is not None and isinstance(given.value, str):
        model["id"] = given.value
    since = _SHARDED_BY_FSDP_SINCE.get(method.name)
    by_fsdp = setup.sharding == "fsdp" and since is not None and is_at_least("trl", since, versions)
    if setup.sharding == "zero3" or by_fsdp:
        model["sharded"] = True
    yield model, origin


def _teacher(method: Method, settings: LayeredSettings, findings: FindingCollector, setup: Setup) -> _Found:
    if not method.teacher:
        return
    named = settings.find("teacher_model_name_or_path", "teacher_model")
    server = settings.find("teacher_model_server_url")
    options = settings.find("teacher_model_init_kwargs")
    if server is not None or setup.holds("teacher"):
        return
    if named is None or not isinstance(named.value, str):
        findings.warn(f"The teacher of TRL's {method.name} is not named here, and is not counted.")
        findings.add_uncertainty("more", "weights")
        return
    model: dict[str, Any] = {"role": "teacher", "id": _as_id(named.value, setup)}
    dtype = _dtype(options, findings, setup)
    if dtype is not None:
        model["dtype"] = dtype
    if setup.sharding == "zero3":
        model["sharded"] = True
    yield model, named.origin


def _scorers(method: Method, settings: LayeredSettings, findings: FindingCollector, setup: Setup) -> _Found:
    """Yield reward models; functions of the user's own may hold some, which nobody can see from here."""
    for name in method.scorers:
        given = settings.find(name)
        if given is None:
            continue
        for value in _words(given.value):
            if name == "reward_funcs" and value in _FUNCTIONS:
                continue
            if name == "reward_funcs" and "/" not in value:
                findings.warn(f"{given.origin}: what the reward function {value} holds on the GPU is not counted.")
                findings.add_uncertainty("more", "weights")
                continue
            model: dict[str, Any] = {
                "role": "reward",
                "id": _as_id(value, setup),
                "task": "sequence-classification",
            }
            if setup.sharding == "zero3":
                model["sharded"] = True
            yield model, given.origin


def _words(value: Any) -> list[str]:
    words = value if isinstance(value, list | tuple) else str(value).replace(",", " ").split()
    return [str(word) for word in words if word not in (None, "None")]


def _as_id(name: str, setup: Setup) -> str:
    """Return the name, or the full path of a folder."""
    return str(setup.filesystem.resolve(name)) if name.startswith(("/", "./", "../", "~")) else name


def _dtype(options: Setting | None, findings: FindingCollector, setup: Setup) -> str | None:
    if options is None:
        return None
    try:
        table, _ = table_of_setting(options.value, setup.filesystem)
    except InputError as error:
        findings.mark_uncertain("other_models", f"{options.origin} is not counted: {error.message}")
        return None
    named = table.get("dtype", table.get("torch_dtype"))
    return DTYPE_NAMES.get(as_word(options.with_value(named)) or "")


def _is_zero(setting: Setting) -> bool:
    try:
        return float(setting.value) == 0
    except (TypeError, ValueError):
        return False
