"""axolotl: its YAML and the overrides of ``axolotl train cfg.yml --micro-batch-size 4``.

Names and meanings: ``src/axolotl/utils/schemas`` and ``utils/config`` of axolotl 0.12 and later. It trains with
transformers' Trainer and accelerate.
"""

from ..arguments.table import Library, doubt_arguments, library, translate
from ..program.accelerate import accelerate_layers
from ..program.program import Program
from ..source.evidence import JobReading
from ..source.settings import LayeredSettings, Setting, SettingsLayer, as_bool, as_int, as_word
from ..source.versions import transformers_defaults
from ..trainer.trainer_program import read_trainer
from ..trl.defaults import trl_defaults
from .shared.settings_files import tool_layers, uses_deepspeed
from .shared.tool import known_tool
from .shared.trained_names import PROJECTOR, VISION_TOWER

_OLDEST_TRL = "0.21"
"""The TRL of axolotl 0.12 (its ``requirements.txt``), the oldest version that is read here."""
_OF_TRL = "trl."
"""What the names of the settings in axolotl's section for TRL begin with."""
_LEFT_TO_TRL = ("max_completion_length", "num_generations", "beta", "vllm_mode", "vllm_gpu_memory_utilization")
"""Settings of methods that generate text, for which axolotl has no default of its own."""
_LIGER_LOSS = "fused_linear_cross_entropy"
_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")


def read(program: Program) -> JobReading:
    """Return the job of an axolotl configuration."""
    table, findings = library("axolotl"), program.findings
    layers = tool_layers(program, "config", written=("debug.log",))
    settings = LayeredSettings(*layers)
    translated = [_translate(layer, table) for layer in layers]
    doubt_arguments(table, "all", settings, findings)
    frozen = [f"!*{part}*" for part in (*VISION_TOWER, *PROJECTOR)]
    findings.record_from(settings.find_true("freeze_mm_modules"), "training.trainable", frozen)
    findings.record_from(settings.find_true("quantize_moe_experts"), "lora.quantize_experts", True)
    _doubt_kernels(program, settings)
    spread, processes = _device_map(program, settings)
    defaults = {
        **transformers_defaults(program.versions),
        **table.defaults("all"),
        "per_device_eval_batch_size": settings.find("eval_batch_size", "micro_batch_size")
        or Setting.default(1, "axolotl's default micro_batch_size"),
        **_quantization(settings),
        **_adapter_types(settings),
        **_trl_defaults(program, settings),
        **spread,
    }
    accelerate, method = [each for _, each in translated], _method(settings)
    if method is not None and "trl" not in program.versions:
        findings.older_versions = {"trl": _OLDEST_TRL}
    return read_trainer(
        program,
        [
            _precision(settings) | _accumulation(settings) | _all_linear(settings),
            *(each for each, _ in translated),
            defaults,
        ],
        [*accelerate, uses_deepspeed(settings), processes, *accelerate_layers(program, {})],
        method=method,
    )


_ONE_PER_GPU = "axolotl starts accelerate, which starts one process per GPU unless --num-processes is given"


def _device_map(program: Program, settings: LayeredSettings) -> tuple[dict[str, Setting], dict[str, Setting]]:
    """Return how one process spreads the layers over its GPUs (``choose_device`` in utils/config), and that it is one.

    It does not under ``accelerate launch``, which always sets ACCELERATE_USE_CPU (axolotl 0.5 to 0.18).
    """
    launchers = program.launcher.launchers
    by_itself = as_word(settings.find("launcher")) == "python" or settings.find("no_accelerate") is not None
    if program.config_file is not None:
        return {}, {}
    if launchers and not by_itself:
        return {}, {"tool_one_per_gpu": Setting.default(True, _ONE_PER_GPU)}
    one = Setting.default(1, "axolotl trains in its own process")
    return {"device_map": Setting.default("auto", "axolotl's device_map in one process")}, {"num_processes": one}


def _doubt_kernels(program: Program, settings: LayeredSettings) -> None:
    """Warn where axolotl uses its own LoRA kernels by default (``check_auto_enable_lora_kernels``).

    Under checkpointing they hardly matter, as one block at a time is saved.
    """
    adapter = as_word(settings.find("adapter"))
    is_eight_bit = adapter == "lora" and settings.is_true("load_in_8bit")
    leaves_out = settings.find("rl", *_KERNELS) is not None or settings.is_true("trust_remote_code") or is_eight_bit
    checkpointing = settings.find("gradient_checkpointing")
    saves_all = checkpointing is None or as_bool(checkpointing) is False
    if adapter in ("lora", "qlora") and saves_all and not leaves_out:
        program.findings.warn("axolotl's LoRA kernels (its default) need less memory than this figure.")
        program.findings.add_uncertainty("less", "activations")


def _translate(layer: SettingsLayer, table: Library) -> tuple[dict[str, Setting], dict[str, Setting]]:
    trainer, accelerate = translate(layer, table)
    for name in [name for name in trainer if name.startswith(_OF_TRL)]:
        trainer.setdefault(name.removeprefix(_OF_TRL), trainer.pop(name))
    _translate_loss(trainer)
    _translate_sharding(trainer, accelerate)
    return trainer, accelerate


def _trl_defaults(program: Program, settings: LayeredSettings) -> dict[str, Setting]:
    """Return TRL's defaults of what axolotl leaves to it."""
    method = _method(settings)
    defaults = trl_defaults(method, program.versions) if method is not None else {}
    return {name: setting for name, setting in defaults.items() if name in _LEFT_TO_TRL}


def _translate_sharding(trainer: dict[str, Setting], accelerate: dict[str, Setting]) -> None:
    """Switch FSDP on where ``fsdp`` or ``fsdp_config`` is set (``utils/trainer.py``: ``prepare_optim_env``)."""
    words, nested = trainer.pop("fsdp", None), [name for name in trainer if name.startswith("fsdp_config.")]
    on = words if words is not None and words.value else trainer[nested[0]] if nested else None
    for name in nested:
        inner = name.partition(".")[2]
        accelerate.setdefault(inner if inner.startswith("fsdp_") else f"fsdp_{inner}", trainer.pop(name))
    if on is not None:
        accelerate.setdefault("use_fsdp", on.with_value(True))
        policy = Setting.default("TRANSFORMER_BASED_WRAP", "transformers' default under axolotl")
        accelerate.setdefault("fsdp_auto_wrap_policy", policy)


def _translate_loss(trainer: dict[str, Setting]) -> None:
    """Translate plugins that compute the loss without the logits."""
    plugins, fused = trainer.pop("plugins", None), trainer.pop("liger_fused_linear_cross_entropy", None)
    names = plugins.value if plugins is not None and isinstance(plugins.value, list) else []
    names_of_liger = library("axolotl").words["liger"]
    kernels = {name: trainer.pop(f"liger_{name}", None) for name in names_of_liger}
    stated = {key: on for key, on in {_LIGER_LOSS: fused, **kernels}.items() if on is not None}
    cut = any("cut_cross_entropy" in str(name).lower() for name in names)
    off = dict.fromkeys(names_of_liger.values(), False)
    if stated and any("liger" in str(name).lower() for name in names):
        table = {names_of_liger.get(key, key): bool(as_bool(on)) for key, on in stated.items()}
        config = {**off, _LIGER_LOSS: cut, **table, "geglu": True, "layer_norm": True}
        first, wanted = next(iter(stated.values())), any(table.values())
    elif plugins is not None and cut:
        first, wanted, config = plugins, True, {**off, _LIGER_LOSS: True}
    else:
        return
    trainer.setdefault("use_liger_kernel", first.with_value(wanted))
    trainer.setdefault("liger_kernel_config", first.with_value(config))
    trainer["fused_in_evaluation"] = first.with_value(cut)  # cut cross-entropy makes no logits there either


def _precision(settings: LayeredSettings) -> dict[str, Setting]:
    """Return the precision of computation and the type in which weights are loaded.

    ``bf16`` and ``fp16`` ask for autocast, ``bfloat16`` and ``float16`` only for the type of the weights; Trainer's
    ``bf16`` follows ``bfloat16`` too. A null ``bf16`` is off, and the default ``auto`` hides ``float16``
    (axolotl 0.18: ``resolve_dtype`` in utils/config, ``_configure_precision_settings`` in core/builders/base.py).
    """
    fp16 = settings.find_true("fp16")
    default = Setting.default("auto", "axolotl's default bf16: auto")
    bf16 = settings.find("bf16") or settings.find_unset("bf16") or default
    word = as_word(bf16)
    if as_bool(bf16) or word == "full" or (word == "auto" and fp16 is None):
        on, dtype = bf16.with_value(word != "full"), "bfloat16"
    elif (bfloat16 := settings.find_true("bfloat16")) is not None:
        on, dtype = bfloat16.with_value(True), "bfloat16"
    elif (half := fp16 or settings.find_true("float16")) is not None:
        return {"bf16": bf16.with_value(False), "fp16": half.with_value(fp16 is not None), "dtype": _weights("float16")}
    else:
        on, dtype = bf16.with_value(False), "float16" if settings.is_true("load_in_8bit") else "float32"
    return {"bf16": on, "fp16": on.with_value(False), "dtype": _weights(dtype)}


def _weights(dtype: str) -> Setting:
    return Setting.default(dtype, f"axolotl then loads weights in {dtype}")


def _accumulation(settings: LayeredSettings) -> dict[str, Setting]:
    """Return accumulation from ``batch_size``, which counts the sequences of a rank's step and is no micro-batch."""
    total, micro = settings.find("batch_size"), as_int(settings.find("micro_batch_size"))
    if total is None:
        return {}
    steps = (as_int(total) or 0) // micro if micro else 0
    unset = Setting(value=None, origin=total.origin)
    return {"batch_size": unset, "gradient_accumulation_steps": total.with_value(steps) if steps else unset}


def _all_linear(settings: LayeredSettings) -> dict[str, Setting]:
    """Return the adapted layers where axolotl adds all linear ones to those that are named (``loaders/adapter.py``)."""
    linear = settings.find_true("lora_target_linear")
    return {} if linear is None else {"lora_target_modules": linear.with_value("all-linear")}


def _quantization(settings: LayeredSettings) -> dict[str, Setting]:
    """Return quantization: QLoRA has 4 bits, with quantized scales (``loaders/model.py``)."""
    adapter, dtype = settings.find("adapter"), settings.find("peft.weight_dtype")
    if adapter is not None and dtype is not None:  # with any backend: torchao has scales of 8 or 16 bits
        bits = "load_in_8bit" if as_word(dtype) == "int8" else "load_in_4bit"
        return {bits: dtype.with_value(True), "bnb_4bit_use_double_quant": dtype.with_value(True)}
    if adapter is None or as_word(adapter) != "qlora":
        return {}
    double = settings.find("bnb_config_kwargs.bnb_4bit_use_double_quant") or Setting.default(True, "axolotl's default")
    return {"load_in_4bit": adapter.with_value(True), "bnb_4bit_use_double_quant": double}


def _adapter_types(settings: LayeredSettings) -> dict[str, Setting]:
    """Return the types around adapters (``loaders/model.py``, ``loaders/adapter.py``; 0.5 to 0.18).

    It calls peft's k-bit preparation, unless the model is sharded, and then casts norms, embedding and head back to the
    type of computation. DPO and KTO leave the adapters to TRL, which may prepare the model again.
    """
    found = {}
    if _method(settings) not in ("dpo", "kto"):
        origin = "axolotl casts weights that k-bit preparation made fp32 back to the compute dtype"
        found["kbit_preparation"] = Setting.default(False, origin)
    cast = settings.find("peft_autocast_adapter_dtype")
    if cast is not None and as_bool(cast) is False:
        found["lora_adapter_dtype"] = cast.with_value("as weights")
    return found


def _method(settings: LayeredSettings) -> str | None:
    if settings.is_true("process_reward_model"):
        return "prm"
    if settings.is_true("reward_model"):
        return "reward"
    method = as_word(settings.find("rl"))
    return {"ipo": "dpo", "simpo": "cpo"}.get(method or "", method)


TOOL = known_tool("axolotl", read)
