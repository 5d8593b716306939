"""Output folders and reporting (``run.*``) and checkpoints (``saving.*``), from transformers' arguments."""

from ...job.rules.strategies import STRATEGIES
from ..source.evidence import FindingCollector
from ..source.settings import Setting, as_bool, as_int, as_word, words_of
from .trainer_inputs import TrainerInputs

_NO_TARGETS = ("none", "all")
"""Values of ``report_to`` that name no library; ``all`` means whatever is installed."""


def read_run(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Record ``run.output_dir``, ``run.save_total_limit``, ``run.logging_dir``, ``run.report_to``.

    Paths become absolute, unless it is unknown from which folder the program is started.
    """
    find, filesystem = inputs.settings.find, inputs.filesystem
    for name in ("output_dir", "logging_dir"):
        folder = find(name)
        if folder is not None and isinstance(folder.value, str):
            path = folder.value if filesystem.fallback_folders else str(filesystem.resolve(folder.value))
            findings.record_from(folder, f"run.{name}", path)
    limit, targets = find("save_total_limit"), find("report_to")
    findings.record_from(limit, "run.save_total_limit", as_int(limit))
    names = [name for name in words_of(targets) if name not in _NO_TARGETS]
    findings.record_from(targets, "run.report_to", names or None)


def read_saving(inputs: TrainerInputs, findings: FindingCollector, *, lora: bool) -> None:
    """Record what the Trainer saves where ranks hold shards: ``_save_checkpoint``, ``save_model``.

    FSDP gathers the whole model, adapters or not, under FULL_STATE_DICT, which is accelerate's default for FSDP1; its
    default for FSDP2 is SHARDED_STATE_DICT. ZeRO 3 gathers only if it is told so, and then no frozen weights of peft's.
    """
    find, found = inputs.settings.find, findings.get("parallel.strategy")
    written = find("save_strategy", "save_steps", "output_dir", "save_only_model")
    if written is None or found is None or as_word(find("save_strategy")) == "no":
        return
    strategy = STRATEGIES[found.value]
    if inputs.fsdp is not None:
        default = "FULL_STATE_DICT" if strategy.flat_parameters else "SHARDED_STATE_DICT"
        kind = inputs.fsdp.find("fsdp_state_dict_type")
        kind = kind or Setting.default(default, f"accelerate's default with {strategy.name}")
        full = str(kind.value).upper().startswith(("FULL", "1"))
        findings.record_from(kind, "saving.weights", "full" if full else "sharded")
    elif strategy.deepspeed and strategy.zero_stage == 3 and inputs.deepspeed is not None:
        gather = inputs.deepspeed.find("zero3_save_16bit_model")
        gather = gather or Setting.default(False, "DeepSpeed's default stage3_gather_16bit_weights_on_model_save")
        whole = "adapters" if lora else "full"
        findings.record_from(gather, "saving.weights", whole if as_bool(gather) else "sharded")
    else:
        return
    only = find("save_only_model")
    default_origin = "the Trainer saves optimizer states unless save_only_model is set"
    findings.record_from(only or Setting.default(False, default_origin), "saving.optimizer", not as_bool(only))
