"""LoRA adapters and the quantization of frozen weights (``lora.*``), from peft's and bitsandbytes' arguments."""

from typing import Any

from ...job.rules.strategies import DTYPE_NAMES
from ..source.evidence import MODEL_STATES, FindingCollector
from ..source.settings import LayeredSettings, Setting, as_bool, as_word, words_of
from .trainer_inputs import TrainerInputs

_TARGET_NAMES = ("lora_target_modules", "lora_target", "lora_targets")
_AS_WEIGHTS = "as weights"
"""Value of ``lora_adapter_dtype`` where peft leaves adapters in the type of what they adapt."""
_EMBEDDINGS = ("embed_tokens", "embed_in", "wte")
_HEADS = ("lm_head", "embed_out")
_PATTERN_CHARACTERS = frozenset("*|()[]\\$^")


def read_lora(inputs: TrainerInputs, default_targets: Setting | None, findings: FindingCollector) -> bool:
    """Record ``lora.*`` where adapters are trained. Return True if they are.

    Args:
        inputs: everything known about the program.
        default_targets: the layers that peft adapts where the program names none; None: it has to name them.
        findings: collects what is read.
    """
    find = inputs.settings.find
    enabled = find("use_peft", "use_lora", "lora", "peft")
    rank = find("lora_r", "lora_rank")
    if enabled is None and rank is not None and str(rank.value) == "0":
        rank = None  # scripts say so that there are no adapters
    wanted = as_bool(enabled) if enabled is not None else (rank is not None and inputs.method is None)
    quantization = _quantization(inputs.settings)
    if not wanted:
        if rank is not None and rank.written:
            why = "nothing switches adapters on" if enabled is None else enabled.origin
            why += " is off" if enabled is not None and enabled.written else ""
            if enabled is None or "default of" not in rank.origin:
                findings.warn(f"{rank.origin}: {why}, so no adapters are counted.")
            find(*_TARGET_NAMES)  # which have no effect either, and need no warning of their own
        if quantization is not None:
            sentence = f"{quantization.origin}: weights are counted unquantized, because there are no LoRA adapters."
            findings.doubt(sentence, "less", "weights")
        return False
    rank = rank or Setting.default(16 if inputs.method else 8, "the default rank")
    findings.record_count("lora.rank", rank)
    targets = find(*_TARGET_NAMES)
    read_targets(targets, default_targets, findings)
    if enabled is None and targets is None and inputs.is_script:
        sentence = f"{rank.origin} is the only adapter setting: the adapted layers are not known."
        findings.mark_uncertain("lora.targets", sentence)
    _read_copied_modules(inputs.settings, findings)
    findings.record_dropout(find("lora_dropout"))
    prepared = find("kbit_preparation")
    _read_type(inputs.settings, findings)
    if quantization is not None:
        findings.record_from(quantization, "lora.quantization", quantization.value)
        findings.record_from(prepared, "lora.kbit_preparation", as_bool(prepared))
    return True


def _read_type(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record the adapters' type where it is stated, by a tool's flag or as that of the weights that they adapt."""
    setting = settings.find("lora_adapter_dtype")
    if setting is None:
        return
    word = as_word(setting) or ""
    if word == _AS_WEIGHTS:
        halves = [name for name in ("bf16", "fp16") if settings.is_true(name)]
        dtype = DTYPE_NAMES.get(as_word(settings.find("dtype", "torch_dtype")) or "") or next(iter(halves), None)
    else:
        dtype = DTYPE_NAMES.get(word)
    findings.record_from(setting, "lora.adapter_dtype", dtype)


def _quantization(settings: LayeredSettings) -> Setting | None:
    """Return how bitsandbytes stores frozen weights; None: it does not quantize them."""
    four, eight = settings.find_true("load_in_4bit"), settings.find_true("load_in_8bit")
    double = settings.find("use_bnb_nested_quant", "bnb_4bit_use_double_quant", "double_quant")
    if four is not None and double is not None and as_bool(double):
        origin = "; ".join(dict.fromkeys((four.origin, double.origin)))
        return Setting(value="nf4-double", origin=origin, written=four.written)
    if four is not None:
        return four.with_value("nf4")
    return eight.with_value("int8") if eight is not None else None


def read_targets(setting: Setting | None, default: Setting | None, findings: FindingCollector) -> None:
    """Record the layers that adapters are for: a list or text of their names, or regular expressions, as in peft."""
    names: Any = setting.value if setting is not None else None
    if isinstance(names, str):
        words = names.removeprefix("[").removesuffix("]").split(",")  # fire takes [q_proj,v_proj] for a list
        names = [name for word in words if (name := word.strip().strip("'\""))]
    if setting is not None and names in (["all-linear"], ["all"]):
        findings.record_from(setting, "lora.targets", "all-linear")
    elif setting is not None and isinstance(names, list) and all(isinstance(name, str) for name in names):
        is_pattern = not _PATTERN_CHARACTERS.isdisjoint("".join(names))
        findings.record_from(setting, "lora.targets", "all-linear" if is_pattern else names)
        if is_pattern:
            sentence = f"{setting.origin}: which layers the pattern means is not read; all linear layers are counted."
            findings.mark_uncertain("lora.targets", sentence)
    elif default is not None:
        findings.infer("lora.targets", default.value, default.origin)
    else:
        findings.require("lora.targets")


def _read_copied_modules(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record the modules of which peft trains a copy beside the adapters: the embedding, the head."""
    setting = settings.find("lora_modules_to_save", "modules_to_save")
    names = words_of(setting)
    if setting is None or not names:
        return
    known = all(name in (*_EMBEDDINGS, *_HEADS) for name in names)
    if known and findings.get("training.trainable") is None:
        findings.record_from(setting, "training.trainable", [f"*{name}.*" for name in names])
        if {*names} & {*_EMBEDDINGS} and {*names} & {*_HEADS}:  # peft copies both even where they share their weight
            sentence = (
                "if the head and the embedding share their weight, peft trains a copy of each, but one is counted."
            )
            findings.doubt(f"{setting.origin}: {sentence}", "more", *MODEL_STATES, unless="training.trainable")
    else:
        findings.doubt(f"{setting.origin} may change the memory and is not counted.", "more", *MODEL_STATES)
