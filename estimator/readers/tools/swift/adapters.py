"""Reads the layers that ms-swift adapts: its names for groups of layers, a regular expression, other tuners and tasks.

Read from ``swift/pipelines/train/tuner.py`` and ``swift/arguments/tuner_args.py`` of ms-swift 4.6.
"""

from ...program import Program
from ...source import MODEL_STATES, LayeredSettings, Setting, as_bool, as_word, default_setting, version_tuple
from ..shared import config_of_model, globs_of_regex

_ALL_LINEAR = "all-linear"
_ADALORA_RANK = 12
_DROPOUT = 0.05
_KEEPS_DTYPE = (4, 5)
"""Version since which ``lora_dtype`` is the adapters' type (swift/tuners/peft.py, pull request 9832)."""
_TASKS_WITHOUT_LOGITS = ("embedding", "reranker", "generative_reranker", "decision")


def read_adapters(program: Program, settings: LayeredSettings) -> dict[str, Setting]:
    """Return rank and adapted layers under the trainer's names, where ms-swift has its own words for them."""
    findings, found = program.findings, _targets(program, settings)
    tuner, trained = settings.find("tuner_type", "train_type"), settings.find("adapters")
    if as_word(tuner) == "adalora":
        default = default_setting(_ADALORA_RANK, "ms-swift's default adalora_init_r")
        found["lora_r"] = settings.find("adalora_init_r") or default
    found |= _types(program, settings)
    if trained is not None and trained.value:
        findings.warn(f"{trained.origin}: rank and layers are those of the saved adapter, which is not read.")
        findings.add_uncertainty("either", "gradients", "optimizer", "activations", unless="lora.rank")
    return found


def _types(program: Program, settings: LayeredSettings) -> dict[str, Setting]:
    """Return dropout and type of the adapters; before 4.5 peft made them fp32 after ``lora_dtype`` had been applied.

    Nothing in 1.5 to 4.5 casts what is not quantized to fp32 (peft's k-bit preparation).
    """
    found = {"kbit_preparation": default_setting(False, "ms-swift never calls peft's k-bit preparation")}
    found["lora_dropout"] = settings.find("lora_dropout", "lora_dropout_p") or default_setting(
        _DROPOUT, "ms-swift's default lora_dropout"
    )
    dtype, version = settings.find("lora_dtype"), program.versions.get("ms_swift") or program.versions.get("ms-swift")
    if dtype is not None and (version_tuple(version) or _KEEPS_DTYPE) >= _KEEPS_DTYPE:
        found["lora_adapter_dtype"] = dtype
    return found


def doubt_task(program: Program, settings: LayeredSettings) -> None:
    """Warn of tasks that have neither the head of a causal language model nor one sequence an example."""
    task, backend = settings.find("task_type"), settings.find("tuner_backend")
    if task is not None and as_word(task) in _TASKS_WITHOUT_LOGITS:
        program.findings.warn(f"{task.origin}: {task.value} is counted as a causal language model.")
        program.findings.add_uncertainty("less", "logits")
        program.findings.add_uncertainty("more", "activations")  # a positive and negatives beside each example
    if backend is not None and as_word(backend) == "unsloth":
        program.findings.warn(f"{backend.origin}: what Unsloth's own kernels save is not counted.")
        program.findings.add_uncertainty("less", "activations", "logits")


def _targets(program: Program, settings: LayeredSettings) -> dict[str, Setting]:
    findings = program.findings
    regex, targets = settings.find("target_regex"), settings.find("target_modules")
    if regex is not None and regex.value:
        return {"lora_target_modules": regex.with_value(_names_of_regex(str(regex.value)) or str(regex.value))}
    names = _words(targets)
    if targets is not None and _ALL_LINEAR not in names:
        return {}
    if further := [name for name in names if name != _ALL_LINEAR]:
        named = targets or default_setting(names, "ms-swift's default")
        findings.warn(f"{named.origin}: adapters of {', '.join(further)} are not counted beside {_ALL_LINEAR}.")
        findings.add_uncertainty("more", *MODEL_STATES, unless="lora.targets")
    _doubt_encoders(program, settings)
    return {"lora_target_modules": targets.with_value(_ALL_LINEAR)} if targets is not None else {}


def _doubt_encoders(program: Program, settings: LayeredSettings) -> None:
    """Warn of a model with a vision tower: by default only its language model's linear layers get adapters."""
    config = config_of_model(program, settings.find("model"))
    if config is None or "vision_config" not in config:
        return
    switches = (settings.find("freeze_vit"), settings.find("freeze_aligner"))
    if any(as_bool(switch) is not False for switch in switches):
        sentence = "ms-swift adapts only the language model of a model with a vision tower; all layers are counted."
        program.findings.warn(sentence)
        program.findings.add_uncertainty("less", "gradients", "optimizer", "activations", unless="lora.targets")


def _names_of_regex(text: str) -> list[str] | None:
    """Return the names of layers that a regular expression of whole names ends with; None: it says more."""
    globs = globs_of_regex(f"{text}$", from_start=True)
    if globs is None or not all(glob.startswith("*") for glob in globs):
        return None
    names = [glob.removeprefix("*").removeprefix(".") for glob in globs]
    return names if all(name.replace("_", "").isalnum() for name in names) else None


def _words(setting: Setting | None) -> list[str]:
    if setting is None:
        return []
    value = setting.value if isinstance(setting.value, list) else str(setting.value).split()
    return [str(name) for name in value]
