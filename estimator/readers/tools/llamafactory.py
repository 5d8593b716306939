"""LLaMA-Factory: its YAML and the overrides of ``llamafactory-cli train x.yaml cutoff_len=4096``, version 0.

Names and meanings: ``src/llamafactory/hparams`` of LLaMA-Factory 0.9. It trains with transformers' Trainer.
"""

import re

from ...common.errors import CannotTellError
from ...common.untrusted_files import MAX_SETTINGS_BYTES, read_file
from ..arguments.table import doubt_arguments, library, translate
from ..program.accelerate import accelerate_layers
from ..program.program import Program
from ..program.world_size import processes_per_node, visible_gpus
from ..source.evidence import FindingCollector, JobReading
from ..source.settings import LayeredSettings, Setting, as_bool, as_int, as_word
from ..source.versions import transformers_defaults, version_tuple
from ..trainer.trainer_program import read_trainer
from .shared.own_loop import bits_of_weights, config_of_model
from .shared.settings_files import tool_layers, uses_deepspeed
from .shared.tool import has_any, known_tool
from .shared.trained_names import doubt_encoders, frozen_parts, whole_model

_PARTS = ("freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model")


def _read_parts(findings: FindingCollector, settings: LayeredSettings, method: str | None) -> dict[str, Setting]:
    """Record the parts of a model with a vision tower that do not train, and return its task.

    Read from ``model/adapter.py`` and ``model/model_utils/visual.py`` of LLaMA-Factory in August 2026, which compares
    parts of names; a pattern with ``*`` on both sides does the same.
    """
    if method not in ("full", "freeze"):
        doubt_encoders(findings, settings, "LLaMA-Factory", switches=_PARTS)
    elif frozen := frozen_parts(settings, switches=_PARTS):
        origins = [found.origin for name in _PARTS if (found := settings.find(name)) is not None]
        origin = "; ".join(origins) or "LLaMA-Factory freezes vision tower and projector by default"
        findings.record("training.trainable", [f"!{glob}" for glob in frozen], origin, written=bool(origins))
    return whole_model("LLaMA-Factory")


_OF_VERSION_1 = ("model_class", "dist_config", "kernel_config", "quant_config")

_OF_OTHER_COMMANDS = ("infer_backend", "export_dir", "n_shot")
"""Settings of its commands chat, export and eval."""
_FUSED_LOSS = "fused_linear_cross_entropy"
_COPIES = ("src/llamafactory", "src/llmtuner", "llamafactory", "llmtuner")
_LENGTHS = re.compile(r"(cutoff_len|max_source_length|max_target_length): [^=\n]*=\s*(?:field\(\s*default=)?(\d{1,7})")


def read(program: Program) -> JobReading:
    """Return the job of a LLaMA-Factory configuration."""
    findings, layers = program.findings, tool_layers(program, "config")
    settings = LayeredSettings(*layers)
    if settings.find("model_name_or_path") is None and settings.find("model") is not None:
        raise CannotTellError(
            "LLaMA-Factory's version 1 is not read: rehearse it without a GPU (vramtop rehearse -- COMMAND)"
        )
    other = settings.find_true("do_predict") or settings.find(*_OF_OTHER_COMMANDS)
    if other is not None and not settings.is_true("do_train"):
        raise CannotTellError(f"{other.origin} trains nothing; to generate text: vramtop fit MODEL --inference")
    finetuning = settings.find("finetuning_type")
    lora = finetuning is None or as_word(finetuning) == "lora"
    table, default = library("llamafactory"), "LLaMA-Factory's default"
    for group in ("all", "reward", "policy"):
        doubt_arguments(table, group, settings, findings)
    defaults = {
        **transformers_defaults(program.versions),
        **table.defaults("all", *(["lora"] if lora else [])),
        "use_peft": (finetuning or Setting.default(True, f"{default} finetuning_type lora")).with_value(lora),
        "dtype": _weights(settings, lora=lora),
        "frozen_dtype": _weights(settings, lora=True),
    }
    bits, method = settings.find("quantization_bit"), settings.find("quantization_method")
    double = settings.find("double_quantization")
    double = double if as_bool(double) is not None else None
    quantization = bits_of_weights(findings, bits, method, double, "LLaMA-Factory") if bits is not None else {}
    stage = as_word(settings.find("stage"))
    defaults["packing"] = Setting.default(stage == "pt", f"{default} packing")
    if stage == "rm":  # labels are in its batches, so that the language model computes its loss too (rm/trainer.py)
        defaults["task"] = Setting.default("causal-lm", "LLaMA-Factory's reward model is a language model")
    if "vision_config" in (config_of_model(program, settings.find("model_name_or_path")) or {}):
        defaults |= _read_parts(findings, settings, as_word(finetuning))
    return read_trainer(
        program,
        [
            _length(program, settings),
            *(translate(layer, table)[0] for layer in layers),
            *(quantization, _kernels(settings, stage), defaults),
        ],
        [uses_deepspeed(settings), _processes(program), *accelerate_layers(program, {})],
        method=_method(stage, settings),
        own_loss=False,
    )


def _length(program: Program, settings: LayeredSettings) -> dict[str, Setting]:
    """Return the default length of a copy of LLaMA-Factory in the program's folder: before 0.9.1, it was another.

    That of 2023 had two, for the prompt and the response.
    """
    if settings.find("cutoff_len") is not None:
        return {}
    for folder in _COPIES:
        try:
            text = read_file(program.filesystem.resolve(f"{folder}/hparams/data_args.py"), MAX_SETTINGS_BYTES)
        except OSError:
            continue
        found = dict(_LENGTHS.findall(text.decode(errors="replace")))
        parts = {"cutoff_len"} & found.keys() or found.keys()
        length = sum(as_int(settings.find(name)) or int(found[name]) for name in parts)
        return {"max_length": Setting.default(length, f"the default in {folder}")} if length else {}
    version = version_tuple(program.versions.get("llamafactory"))
    is_old = version is not None and version < (0, 9)
    return {"max_length": Setting.default(1024, "LLaMA-Factory's default before 0.9.1")} if is_old else {}


_STOPS = (
    "LLaMA-Factory stops where one process finds {gpus} GPUs: llamafactory-cli or torchrun starts one for each, and "
    "CUDA_VISIBLE_DEVICES=0 leaves one."
)


def _processes(program: Program) -> dict[str, Setting]:
    """Return how many processes its command starts: one per GPU, unless NPROC_PER_NODE is set (``launcher.py``)."""
    is_alone = as_int(visible_gpus(program.environ)) == 1
    if program.config_file is None and not program.launcher.launchers and not is_alone:
        program.findings.more_gpus = _STOPS
    starts = Setting.default(True, "llamafactory-cli starts one process per GPU unless NPROC_PER_NODE is set")
    per_gpu = {} if program.environ.get("USE_RAY") or program.config_file is not None else {"tool_one_per_gpu": starts}
    return processes_per_node(program.environ) or per_gpu


def _kernels(settings: LayeredSettings, stage: str | None) -> dict[str, Setting]:
    """Return Liger-Kernel's settings outside of supervised training and pre-training, where logits are needed.

    The loss writes its gradient over the logits then (``cross_entropy``), which only the model's own loss does
    (``model/model_utils/liger_kernel.py``): DPO and KTO have one of their own.
    """
    liger = settings.find("enable_liger_kernel")
    if liger is None or stage in (None, "pt", "sft"):
        return {}
    return {"liger_kernel_config": liger.with_value({_FUSED_LOSS: False, "cross_entropy": stage == "rm"})}


def _method(stage: str | None, settings: LayeredSettings) -> str | None:
    """Return TRL's method that a stage is; the preference losses of ORPO and SimPO need no reference model."""
    if stage == "dpo":
        return {"orpo": "orpo", "simpo": "cpo"}.get(as_word(settings.find("pref_loss")) or "", "dpo")
    return {"rm": "reward", "kto": "kto"}.get(stage or "")


def _weights(settings: LayeredSettings, *, lora: bool) -> Setting:
    """Return the dtype of the weights: that of computation; trained ones are cast to fp32 without ``pure_bf16``.

    Source: ``model/model_utils/misc.py`` and ``hparams/parser.py``.
    """
    if settings.is_true("pure_bf16"):
        return Setting.default("bfloat16", "pure_bf16")
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if settings.is_true(name):
            frozen = Setting.default(dtype, f"LLaMA-Factory loads frozen weights in {dtype}")
            trained = Setting.default("float32", "LLaMA-Factory casts trained weights to fp32")
            return frozen if lora else trained
    return Setting.default("auto", "LLaMA-Factory loads weights as stored")


TOOL = known_tool(
    "llamafactory",
    read,
    is_own=lambda table: (
        ("model_name_or_path" in table and has_any(table, "finetuning_type", "cutoff_len", "stage", "template"))
        or (isinstance(table.get("model"), str) and has_any(table, *_OF_VERSION_1))
    ),
)
