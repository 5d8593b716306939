"""TRL's training methods, one record each: what a trainer puts through the model, and which models it holds.

Read from TRL's sources of versions 0.9 to 1.16 (``trl/trainer/*_trainer.py``, ``trl/experimental``).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from ...common.errors import InputError
from ...common.limits import LimitError, decode_json
from ...job.job import Job
from ...job.resolved_job import trainer_precision
from ...job.rules.dtype_widths import is_four_bit
from ...job.rules.frameworks import DTYPE_NAMES, HALF, STRATEGIES
from ..source.data_files import FilesystemView, table_of_setting
from ..source.evidence import (
    MODEL_STATES,
    Finding,
    FindingCollector,
    LayeredSettings,
    Setting,
    as_bool,
    as_int,
    as_word,
    default_setting,
)
from ..source.versions import framework_with_version, is_at_least
from ..source.written_places import origin_of_bound
from .defaults import trl_defaults

Scores = Literal["likelihood", "log-probs", "scores", "divergence"]
"""What the loss is made of: the likelihood of the tokens, as in pre-training; log-probabilities of completions; a score
per sequence or token, without a vocabulary; the divergence between student and teacher."""
Reference = Literal["none", "kept", "if-beta"]
"""``kept``: a frozen copy of the model unless adapters are trained; ``if-beta``: that, unless ``beta`` is 0."""
Generation = Literal["none", "group", "pair", "prompt"]
"""Text that is generated during training: groups of completions for several steps at once, two completions per prompt
of a step, or one per prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One of TRL's training methods."""

    name: str
    """TRL's command, or what its command would be: ``dpo``, ``online-dpo``."""
    classes: str
    """What the names of its classes begin with: ``OnlineDPO`` of ``OnlineDPOTrainer``."""
    scores: Scores
    sequences: int = 1
    """Sequences that one example puts through the model at once: 2 for a chosen and a rejected one."""
    reference: Reference = "none"
    reference_beside: bool = False
    """Its frozen model runs while what the trained model's forward pass saved exists, not before it."""
    generation: Generation = "none"
    task: str | None = None
    """The task of the model that it loads; None: that of the config, a language model."""
    num_labels: int | None = None
    """Outputs of the head of the model that it loads; None: the config's."""
    tiles_since: tuple[int, int] | None = None
    """TRL's version since which its trainer makes no logits (``add_fused_lm_head``); None: it makes them."""
    liger_since: tuple[int, int] | None = None
    """TRL's version since which it can run Liger-Kernel's loss of its own."""
    teacher: bool = False
    """A frozen teacher runs in the step (``teacher_model_name_or_path``)."""
    scorers: tuple[str, ...] = ()
    """Arguments that name frozen reward models."""
    upcasts_quantized_until: tuple[int, int] | None = None
    """TRL's version since which it leaves what is not quantized of a quantized model in 16 bits; until then peft's
    ``prepare_model_for_kbit_training`` casts it to fp32. None: it never did."""
    trains_value_model: bool = False
    """It trains a second model, the value model, besides."""
    partly_known: bool = False
    """What else it holds or computes is not known here."""


_STILL = (99, 0)
_GENERATED = ("reward_model_name_or_path", "reward_model_path", "reward_funcs", "reward_model")
_ROWS = (
    Method(name="sft", classes="SFT", scores="likelihood", tiles_since=(1, 15), upcasts_quantized_until=(0, 26)),
    Method(
        name="dpo",
        classes="DPO",
        scores="log-probs",
        upcasts_quantized_until=(0, 29),
        sequences=2,
        reference="kept",
        reference_beside=True,
        tiles_since=(1, 15),
        liger_since=(0, 19),
    ),
    Method(
        name="kto",
        classes="KTO",
        scores="log-probs",
        upcasts_quantized_until=(1, 4),
        reference="kept",
        reference_beside=True,
        tiles_since=(1, 15),
        liger_since=(0, 17),
    ),
    Method(
        name="bco",
        classes="BCO",
        scores="log-probs",
        upcasts_quantized_until=_STILL,
        reference="kept",
        reference_beside=True,
    ),
    Method(name="cpo", classes="CPO", scores="log-probs", upcasts_quantized_until=_STILL, sequences=2),
    Method(name="orpo", classes="ORPO", scores="log-probs", upcasts_quantized_until=_STILL, sequences=2),
    Method(name="tpo", classes="TPO", scores="log-probs", sequences=3),
    Method(
        name="reward",
        classes="Reward",
        scores="scores",
        upcasts_quantized_until=(0, 26),
        sequences=2,
        task="sequence-classification",
        num_labels=1,
    ),
    Method(
        name="prm",
        classes="PRM",
        scores="scores",
        task="token-classification",
        upcasts_quantized_until=(1, 9),
    ),
    Method(
        name="grpo",
        classes="GRPO",
        scores="log-probs",
        upcasts_quantized_until=(0, 26),
        reference="if-beta",
        generation="group",
        tiles_since=(1, 15),
        liger_since=(0, 17),
        scorers=_GENERATED,
    ),
    Method(
        name="rloo",
        classes="RLOO",
        scores="log-probs",
        upcasts_quantized_until=(0, 27),
        reference="if-beta",
        generation="group",
        tiles_since=(1, 15),
        scorers=_GENERATED,
    ),
    Method(
        name="online-dpo",
        classes="OnlineDPO",
        scores="log-probs",
        upcasts_quantized_until=(1, 9),
        sequences=2,
        reference="kept",
        reference_beside=True,
        generation="pair",
        scorers=_GENERATED,
    ),
    Method(
        name="xpo",
        classes="XPO",
        scores="log-probs",
        upcasts_quantized_until=(1, 9),
        sequences=2,
        reference="kept",
        reference_beside=True,
        generation="pair",
        scorers=_GENERATED,
    ),
    Method(
        name="nash-md",
        classes="NashMD",
        scores="log-probs",
        upcasts_quantized_until=(1, 9),
        reference="kept",
        reference_beside=True,
        generation="pair",
        scorers=_GENERATED,
    ),
    Method(
        name="gkd",
        classes="GKD",
        scores="divergence",
        upcasts_quantized_until=(0, 26),
        teacher=True,
        reference_beside=True,
        generation="prompt",
    ),
    Method(name="gold", classes="GOLD", scores="divergence", teacher=True, reference_beside=True, generation="prompt"),
    Method(
        name="distillation",
        classes="Distillation",
        scores="divergence",
        teacher=True,
        reference_beside=True,
        generation="group",
        tiles_since=(1, 10),
    ),
    Method(
        name="minillm", classes="MiniLLM", scores="divergence", teacher=True, reference_beside=True, generation="group"
    ),
    Method(
        name="ppo",
        classes="PPO",
        scores="log-probs",
        reference="kept",
        generation="prompt",
        scorers=_GENERATED,
        trains_value_model=True,
    ),
    Method(
        name="gmpo",
        classes="GMPO",
        scores="log-probs",
        reference="if-beta",
        generation="group",
        tiles_since=(1, 15),
        liger_since=(0, 17),
        scorers=_GENERATED,
    ),
    Method(name="async-grpo", classes="AsyncGRPO", scores="log-probs", tiles_since=(1, 15)),
    Method(
        name="a2po",
        classes="A2PO",
        scores="log-probs",
        reference="kept",
        generation="group",
        scorers=_GENERATED,
        partly_known=True,
    ),
    Method(name="sdft", classes="SDFT", scores="log-probs", generation="group", partly_known=True),
    Method(name="sdpo", classes="SDPO", scores="log-probs", generation="group", scorers=_GENERATED, partly_known=True),
    Method(
        name="iw-opd",
        classes="IWOPD",
        scores="divergence",
        teacher=True,
        reference_beside=True,
        generation="group",
        partly_known=True,
    ),
    Method(name="async-distillation", classes="AsyncDistillation", scores="log-probs", partly_known=True),
    Method(
        name="server-distillation",
        classes="ServerDistillation",
        scores="divergence",
        generation="group",
        tiles_since=(1, 10),
        partly_known=True,
    ),
)
METHODS = {row.name: row for row in _ROWS}
"""By name."""
TRAINER_NAMES = "|".join(row.classes for row in _ROWS)
"""Alternatives of a regular expression: what the names of TRL's classes begin with."""
_CLASS = re.compile(rf"({TRAINER_NAMES})(?:v2)?(?:Config|Trainer)")


def method_of_class(name: str) -> Method | None:
    """Return the method of a class of TRL's, such as ``DPOTrainer`` or ``GRPOConfig``; None: it is none."""
    match = _CLASS.fullmatch(name)
    return next((row for row in _ROWS if match is not None and row.classes == match[1]), None)


# Reads the sequences of TRL's examples and their length, as far as the configuration bounds them.


_COMPLETION_NAMES = ("max_completion_length", "max_new_tokens", "response_length")
_LENGTH = "training.sequence_length"


def read_length(
    method: Method,
    settings: LayeredSettings,
    versions: Mapping[str, str],
    findings: FindingCollector,
    *,
    whole: Setting | None,
) -> None:
    """Record the sequences per example, the sequence length, and the tokens whose logits are computed.

    A prompt that no setting cuts leaves the length to the dataset: it is asked for.

    Args:
        method: TRL's method.
        settings: settings by TRL's names.
        versions: installed versions by distribution, where known.
        findings: collects what is read.
        whole: the longest that a sequence may be; None: nothing says so.
    """
    _read_sequences(method, settings, versions, findings)
    prompt = None if settings.is_unset("max_prompt_length") else settings.find("max_prompt_length")
    completion = None if settings.is_unset(*_COMPLETION_NAMES) else settings.find(*_COMPLETION_NAMES)
    whole = settings.find("vllm_max_model_length", "vllm_max_model_len") or whole
    parts = _sum(prompt, completion)
    if method.generation == "group" and completion is not None and as_int(completion) is not None:
        findings.record_from(completion, "training.loss_length", as_int(completion))
    bounds = [(number, bound) for bound in (whole, parts) if bound is not None and (number := as_int(bound))]
    for bound in (whole, prompt, completion):
        if bound is not None and bound.written and as_int(bound) is None:
            findings.refuse(_LENGTH, bound)
    if not bounds:
        _ask(method, completion, versions, findings)
        return
    number, bound = min(bounds, key=lambda pair: pair[0])
    packed = settings.is_true("packing")
    origin = bound.origin if packed else origin_of_bound(bound.origin)
    findings.record(_LENGTH, number, origin, written=bound.written)


def _read_sequences(
    method: Method, settings: LayeredSettings, versions: Mapping[str, str], findings: FindingCollector
) -> None:
    if method.sequences > 1:
        origin = f"TRL's {method.name}: each example is a chosen and a rejected sequence that run together"
        findings.record("training.sequences_per_example", method.sequences, origin, written=False)
    generations = as_int(settings.find("num_generations"))
    if method.name == "grpo" and generations and not is_at_least("trl", (0, 15), versions):
        origin = f"{framework_with_version('trl', versions)}: the batch counts prompts, with num_generations each"
        findings.record("training.sequences_per_example", generations, origin, written=False)


def _sum(prompt: Setting | None, completion: Setting | None) -> Setting | None:
    """Return the length of the longest prompt with the longest completion; None if either has no bound."""
    first, second = as_int(prompt), as_int(completion)
    if prompt is None or completion is None or first is None or second is None:
        return None
    origins = dict.fromkeys((prompt.origin, completion.origin))
    return Setting(
        value=first + second,
        origin=f"longest prompt and completion ({'; '.join(origins)})",
        written=prompt.written or completion.written,
    )


def _ask(method: Method, completion: Setting | None, versions: Mapping[str, str], findings: FindingCollector) -> None:
    """Say why the length is missing."""
    trl = framework_with_version("trl", versions)
    number = as_int(completion)
    if number is None:
        findings.warn(f"{trl} does not truncate sequences here: set {_LENGTH} to the longest in the dataset.")
        return
    findings.warn(
        f"{trl} does not truncate {method.name} prompts here: set {_LENGTH} to the dataset's longest prompt plus "
        f"{number} completion tokens."
    )


# Reads which of Liger-Kernel's kernels a Trainer is to use: ``use_liger_kernel`` and ``liger_kernel_config``.
#
# Defaults: those of Liger-Kernel 0.8.2 (``apply_liger_kernel_to_*`` in ``transformers/monkey_patch.py``).


_CONFIG = "liger_kernel_config"
_FUSED_LOSS, _LOSS_IN_PLACE = "fused_linear_cross_entropy", "cross_entropy"
_PARTS = {"norm": ("rms_norm", "layer_norm"), "mlp": ("swiglu", "geglu"), "rope": ("rope",)}


def read_liger(settings: LayeredSettings, findings: FindingCollector) -> Setting | None:
    """Record the fused kernels, and return the setting that asks for a loss without logits, if one does."""
    liger = settings.find_true("use_liger_kernel", "use_liger")
    if liger is None:
        return None
    kernels = [part for part, names in _PARTS.items() if all(_is_on(settings, name) for name in names)]
    in_place = _is_on(settings, _LOSS_IN_PLACE, default=False)
    findings.record_from(liger, "training.fused_kernels", kernels + (["cross-entropy"] if in_place else []))
    return liger if _is_on(settings, _FUSED_LOSS) and not in_place else None


def _is_on(settings: LayeredSettings, name: str, *, default: bool = True) -> bool:
    """Return True if a kernel is on: by the table of settings, or a key of its own in a nested one."""
    table = _table(settings.find(_CONFIG))
    if name in table:
        return bool(table[name])
    own = settings.find(f"{_CONFIG}.{name}")
    return default if own is None or (value := as_bool(own)) is None else value


def _table(setting: Setting | None) -> Mapping[str, object]:
    """Return the table that a setting holds, or the JSON text of one; empty: neither."""
    value = None if setting is None else setting.value
    if isinstance(value, str):
        try:
            value = decode_json(value)
        except LimitError:
            return {}
    return value if isinstance(value, Mapping) else {}


# Reads how TRL's trainers make their loss: from all logits, in tiles of them, or by Liger-Kernel.


_LOSS = "training.loss"
_LOSS_OF_SCORES = {"log-probs": "log-probs", "divergence": "divergence"}
_CHUNKED_LIGER = (1, 14)
"""Since then ``use_liger_kernel`` of the preference and policy trainers is TRL's own chunked loss."""


def read_loss(
    method: Method,
    settings: LayeredSettings,
    versions: Mapping[str, str],
    findings: FindingCollector,
    *,
    own_loss: bool = True,
) -> None:
    """Record ``training.loss`` and whether a reference's forward pass follows the trained model's.

    Args:
        method: TRL's method.
        settings: settings by transformers' and TRL's names.
        versions: installed versions by distribution, where known.
        findings: collects what is read.
        own_loss: TRL's trainer makes the loss; False: a tool's own, derived from it.
    """
    loss, liger = settings.find("loss_type"), _liger(method, settings, versions, findings)
    _read_reference_pass(method, settings, findings)
    trl = framework_with_version("trl", versions)
    replaced = liger is not None and not liger.written  # by unsloth's, which asks for it unasked
    if (
        own_loss
        and not replaced
        and method.tiles_since is not None
        and is_at_least("trl", method.tiles_since, versions)
    ):
        findings.record(_LOSS, "chunked", f"{trl} computes the loss of {method.name} without the logits", written=False)
    elif method.scores == "likelihood":
        _read_likelihood(loss, liger, trl, findings)
    elif method.scores in _LOSS_OF_SCORES:
        _read_log_probabilities(method, liger, versions, findings)


def _liger(
    method: Method, settings: LayeredSettings, versions: Mapping[str, str], findings: FindingCollector
) -> Setting | None:
    """Return the setting that asks for Liger-Kernel's loss: before 0.25 ``use_liger_kernel`` did so for SFT only."""
    kernel, loss = read_liger(settings, findings), settings.find_true("use_liger_loss")
    asks = method.scores == "likelihood" or is_at_least("trl", (0, 25), versions)
    return loss or (kernel if asks else None)


def _read_reference_pass(method: Method, settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record that a reference runs after the trained model, even if it is the same model with its adapters off."""
    if method.reference_beside and not settings.is_true("precompute_ref_log_probs"):
        origin = f"TRL's {method.name}: its frozen model runs while the trained model's activations are kept"
        findings.record("training.reference_pass", True, origin, written=False)


def _read_likelihood(loss: Setting | None, liger: Setting | None, trl: str, findings: FindingCollector) -> None:
    if liger is not None:
        findings.record_from(liger, _LOSS, "fused-linear")
    elif loss is not None and as_word(loss) == "chunked_nll":
        findings.record_from(loss, _LOSS, "chunked")
    elif loss is not None and as_word(loss) == "dft":
        findings.record(_LOSS, "log-probs", f"{loss.origin}: log-probabilities in {trl}", written=loss.written)


def _read_log_probabilities(
    method: Method, liger: Setting | None, versions: Mapping[str, str], findings: FindingCollector
) -> None:
    trl = framework_with_version("trl", versions)
    if liger is not None and method.liger_since is not None and is_at_least("trl", method.liger_since, versions):
        chunked = is_at_least("trl", _CHUNKED_LIGER, versions)
        findings.record(_LOSS, "chunked" if chunked else "fused-log-probs", liger.origin, written=liger.written)
        return
    if method.generation == "pair":
        findings.warn(
            f"{trl} takes log-probabilities of the completions only, which may need less memory than this figure."
        )
        findings.add_uncertainty("less", "logits", unless=_LOSS)
    origin = f"{trl} takes log-probabilities of {method.name} from all logits"
    findings.record(_LOSS, _LOSS_OF_SCORES[method.scores], origin, written=False)


# Reads the models that TRL's trainers hold beside the trained one: references, teachers, reward and value models.


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
        findings.warn(f"TRL's {method.name} is only partly supported: its other models and passes are not counted.")
        findings.add_uncertainty("more", "weights", "activations", "logits")
    if method.trains_value_model:
        findings.warn(f"TRL's {method.name} also trains a value model; its states and activations are not counted.")
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
            origin = f"{trl} uses 16-bit adapters over quantized weights and casts nothing to fp32"
            findings.record("lora.kbit_preparation", False, origin, written=False)
            findings.record("lora.adapter_dtype", "bf16", origin, written=False)
        else:
            origin = f"{trl} prepares a quantized model for {method.name} (prepare_model_for_kbit_training)"
            findings.record("lora.kbit_preparation", True, origin, written=False)
    cast = settings.find_true("cast_lm_head_to_fp32")
    if cast is not None:
        findings.warn(f"{cast.origin}: the head is counted in the dtype of the other weights.")
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
        findings.warn(f"The teacher of TRL's {method.name} is not named, so it is not counted.")
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
                findings.warn(f"{given.origin}: GPU memory of the reward function {value} is not counted.")
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
        findings.mark_uncertain("other_models", f"Could not read {options.origin}: {error.message}")
        return None
    named = table.get("dtype", table.get("torch_dtype"))
    return DTYPE_NAMES.get(as_word(options.with_value(named)) or "")


def _is_zero(setting: Setting) -> bool:
    try:
        return float(setting.value) == 0
    except (TypeError, ValueError):
        return False


# Reads the text that TRL generates during training (``rollout.*``): by transformers, or by vLLM on the same GPUs.


_SERVED_BESIDES = ("vllm_server_host", "vllm_server_port", "vllm_server_base_url", "vllm_server_timeout")


def read_rollout(
    method: Method,
    settings: LayeredSettings,
    versions: Mapping[str, str],
    findings: FindingCollector,
    *,
    ranks: int | None,
) -> None:
    """Record ``rollout.*`` where the training process generates text, or holds a vLLM that does.

    Args:
        method: TRL's method.
        settings: settings by TRL's names.
        versions: installed versions by distribution, where known.
        findings: collects what is read.
        ranks: ranks of the whole job; None: unknown.
    """
    settings.find(*_SERVED_BESIDES)  # they concern the server only
    if method.generation == "none":
        return
    vllm, mode = settings.find_true("use_vllm"), as_word(settings.find("vllm_mode"))
    if vllm is None:
        _read_own_generation(method, settings, versions, findings, ranks)
    elif mode == "colocate":
        _read_colocated(settings, findings)
    elif mode is not None:
        findings.warn(f"{vllm.origin}: vLLM serves from its own GPUs, which are not part of this job.")
    else:
        findings.warn(
            f"{vllm.origin}: vLLM is assumed to run on a GPU that training does not use; otherwise give [rollout]."
        )
        findings.add_uncertainty("more", "weights", "activations", unless="rollout.engine")


def _read_own_generation(
    method: Method,
    settings: LayeredSettings,
    versions: Mapping[str, str],
    findings: FindingCollector,
    ranks: int | None,
) -> None:
    """Record generation by transformers: the micro-batches whose sequences are generated at once."""
    origin = f"{framework_with_version('trl', versions)} generates text of {method.name} in the training process"
    findings.record("rollout.engine", "transformers", origin, written=False)
    steps = _steps_per_generation(method, settings, versions, findings, ranks)
    if steps is not None and (number := as_int(steps)) is not None and number > 1:
        findings.record_from(steps, "rollout.micro_batches", number)
    prompt = settings.find("max_prompt_length")
    if prompt is not None and (tokens := as_int(prompt)) is not None:
        findings.record_from(prompt, "rollout.prompt_length", tokens)
    gather = settings.find("ds3_gather_for_generation")
    if gather is not None and as_bool(gather) is False:
        findings.record_from(gather, "rollout.gather_weights", False)
    paged = settings.find_true("use_transformers_continuous_batching", "use_transformers_paged")
    if paged is not None:
        findings.warn(
            f"{paged.origin}: its paged cache takes all free memory, and it casts the weights; neither is counted."
        )
        findings.add_uncertainty("more", "activations")


def _steps_per_generation(
    method: Method,
    settings: LayeredSettings,
    versions: Mapping[str, str],
    findings: FindingCollector,
    ranks: int | None,
) -> Setting | None:
    """Return the micro-batches of one generation: those of an optimizer step by default, since 0.18 or for PPO."""
    accumulation = findings.get("training.gradient_accumulation")
    if method.trains_value_model and accumulation is not None:
        parts = as_int(settings.find("num_mini_batches")) or 1
        origin = f"{method.name} generates for a whole update: accumulation ({accumulation.origin}) x num_mini_batches"
        return default_setting(accumulation.value * parts, origin)
    if method.generation != "group" or not is_at_least("trl", (0, 18), versions):
        return None
    steps, whole = settings.find("steps_per_generation"), settings.find("generation_batch_size")
    if steps is not None and as_int(steps) is not None:
        return steps
    micro, total = findings.get("training.micro_batch"), as_int(whole)
    if whole is not None and total is not None and micro is not None:
        return whole.with_value(max(1, total // (micro.value * (ranks or 1))))
    if accumulation is None:
        return None
    return default_setting(accumulation.value, f"steps_per_generation, by default the {accumulation.origin}")


def _read_colocated(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record a vLLM in the training process, with a share of each GPU of its own."""
    find = settings.find
    mode, share = find("vllm_mode"), find("vllm_gpu_memory_utilization", "gpu_memory_utilization")
    if mode is not None:
        findings.record_from(mode, "rollout.engine", "vllm")
    if share is not None and (fraction := _fraction(share)) is not None:
        findings.record_from(share, "rollout.gpu_memory_utilization", fraction)
    elif share is not None:
        sentence = f"{share.origin}: {share.value!r} is not a share of a GPU; 0.3 is assumed for vLLM."
        findings.mark_uncertain("rollout.gpu_memory_utilization", sentence)
    tensor = find("vllm_tensor_parallel_size")
    if tensor is not None and (number := as_int(tensor)) is not None and number > 1:
        findings.record_from(tensor, "rollout.tensor", number)
    sleep = settings.find_true("vllm_enable_sleep_mode")
    if sleep is not None:
        findings.record_from(sleep, "rollout.sleep", True)


def _fraction(setting: Setting) -> float | None:
    try:
        number = float(setting.value)
    except (TypeError, ValueError):
        return None
    return number if 0 < number <= 1 else None


# Reads what TRL's trainer of a method holds and computes, for a job whose other settings are known.


_ORIGIN = "the job"
_BATCH = ("training.micro_batch", "training.gradient_accumulation")
_KNOWN = (*_BATCH, "training.sequence_length")
"""Keys that the job decides, whatever the method."""


def read_method(
    name: str, job: Job, arguments: Mapping[str, tuple[Any, str]] = MappingProxyType({})
) -> tuple[Finding, ...]:
    """Return what a method adds to a job: sequences, loss, models beside the trained one, and text that it generates.

    Args:
        name: of a method in ``METHODS``.
        job: the job, whose batch and length stay as they are.
        arguments: of its trainer by TRL's names, each with its origin.
    """
    method, findings = METHODS[name], FindingCollector()
    versions = {} if job.software.trl is None else {"trl": job.software.trl}
    given = {key: Setting(value=value, origin=origin) for key, (value, origin) in arguments.items()}
    settings = LayeredSettings({**_settings(job), **given}, trl_defaults(name, versions))
    training = job.training
    for key, head in (("model.task", method.task), ("model.num_labels", method.num_labels)):
        if head is not None:
            findings.record(key, head, f"TRL's {name} trainer", written=False)
    for key, value in zip(_BATCH, (training.micro_batch, training.gradient_accumulation), strict=True):
        findings.record(key, value, _ORIGIN)
    length = Setting(value=training.sequence_length, origin=_ORIGIN)
    read_length(method, settings, versions, findings, whole=length)
    read_loss(method, settings, versions, findings)
    _read_arguments(settings, findings, job)
    strategy = STRATEGIES[job.parallel.strategy]
    zero3 = strategy.deepspeed and strategy.zero_stage == 3
    setup = Setup(
        adapters=job.lora is not None,
        sharding="zero3" if zero3 else "fsdp" if strategy.fsdp else None,
        filesystem=FilesystemView(cwd=Path()),
        held=[(msgspec.to_builtins(model), _ORIGIN) for model in job.other_models],
    )
    read_other_models(method, settings, versions, findings, setup)
    if job.rollout is None:
        read_rollout(method, settings, versions, findings, ranks=job.parallel.data_ranks)
    return tuple(finding for finding in findings.build().findings if finding.key not in _KNOWN)


def _read_arguments(settings: LayeredSettings, findings: FindingCollector, job: Job) -> None:
    """Record the precision and the checkpointing of a configuration of TRL's in which nothing else is set."""
    loaded, mixed = settings.find("dtype"), settings.find_true("bf16_unless_fp16")
    if job.lora is not None and mixed is not None and job.training.precision in HALF:
        findings.record("lora.autocast", True, mixed.origin, written=False)
    if loaded is not None:
        kind = "bf16" if mixed is not None else None
        precision = trainer_precision(DTYPE_NAMES.get(str(loaded.value)), kind, keeps_fp32=False)
        findings.record("training.precision", precision, loaded.origin, written=False)
    if (recomputed := settings.find_true("activation_checkpointing")) is not None:
        findings.record("training.activation_checkpointing", "full", recomputed.origin, written=False)


def _settings(job: Job) -> dict[str, Setting]:
    """Return what the job sets by the names that TRL and transformers have for it."""
    values = {
        "load_in_4bit": is_four_bit(job.lora),
        "load_in_8bit": job.lora is not None and job.lora.quantization == "int8",
        "use_liger_kernel": job.training.loss == "fused-linear",
    }
    return {name: Setting(value=True, origin=_ORIGIN) for name, value in values.items() if value}
