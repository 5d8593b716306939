"""Megatron-LM: the flags of ``pretrain_gpt.py``, which describe the model too.

Names, meanings and defaults: ``megatron/training/arguments.py`` and ``megatron/core/transformer``.
"""

from typing import Any

from ..arguments.table import doubt_arguments, library, record_arguments
from ..program.program import Program
from ..program.world_size import WorldSize
from ..source.evidence import MODEL_STATES, FindingCollector, JobReading
from ..source.settings import LayeredSettings, Setting, as_float, as_int, as_word
from ..trainer.unread_settings import warn_of_unread
from .shared.own_loop import record_optimizer, record_ranks, world_of_tool
from .shared.settings_files import tool_settings
from .shared.tool import known_tool

_GPT2_BPE_VOCABULARY = 50257
_SWIGLU_FFN_MULTIPLE = 64
"""Megatron rounds the feed-forward width of a gated MLP down to a multiple of it."""


def read(program: Program) -> JobReading:
    """Return the job of a Megatron-LM command line."""
    findings, settings = program.findings, tool_settings(program, "yaml_cfg")
    findings.record("training.framework", "megatron", "the program is Megatron-LM")
    _read_model(settings, findings)
    record_arguments(library("megatron"), "step", settings, findings)
    doubt_arguments(library("megatron"), "all", settings, findings)
    _read_optimizer(program, settings)
    _read_precision(settings, findings)
    record_arguments(library("megatron"), "checkpointing", settings, findings)
    _read_parallel(program, settings)
    findings.record_global_batch(settings.find("global_batch_size"))
    warn_of_unread(settings, findings)
    return findings.build()


def _read_optimizer(program: Program, settings: LayeredSettings) -> None:
    setting = settings.find("optimizer") or Setting.default("adam", "Megatron's default optimizer")
    known = library("megatron").words["optimizer"].get(as_word(setting) or "")
    record_optimizer(program, settings, setting.with_value(known or setting.value))


def _read_precision(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record the precision and the dtype of gradients, by default fp32 for bf16 and fp16 for fp16."""
    half = next((name for name in ("bf16", "fp16") if settings.is_true(name)), None)
    written = settings.find(half) if half else None
    origin = written.origin if written is not None else "neither --bf16 nor --fp16"
    findings.record("training.precision", f"{half}-mixed" if half else "fp32", origin)
    in_bf16, in_fp32 = settings.find_true("grad_reduce_in_bf16"), settings.is_true("accumulate_allreduce_grads_in_fp32")
    if half == "bf16" and in_bf16 is not None:
        findings.record_from(in_bf16, "parallel.reduce_dtype", "bf16")
    elif half == "fp16" and not in_fp32:
        findings.infer("parallel.reduce_dtype", "fp16", "Megatron's default with --fp16")


def _read_model(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record the model's shape as a Hugging Face config: a Llama with SwiGLU, otherwise a GPT-2."""
    find = settings.find
    sizes = [as_int(find(name)) for name in ("num_layers", "hidden_size", "num_attention_heads")]
    if None in sizes:
        return
    vocabulary = _padded_vocabulary(settings)
    if vocabulary is None:
        findings.warn("The size of the vocabulary is not stated: --vocab-size is missing.", unless="model.id")
        return
    layers, hidden, heads = (size or 1 for size in sizes)
    gated = settings.is_true("swiglu")
    default_ffn = int(hidden * 4 * 2 / 3 / _SWIGLU_FFN_MULTIPLE) * _SWIGLU_FFN_MULTIPLE if gated else 4 * hidden
    config = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": as_int(find("ffn_hidden_size")) or default_ffn,
        "vocab_size": vocabulary,
        "max_position_embeddings": as_int(find("max_position_embeddings")) or as_int(find("seq_length")) or 1024,
        "tie_word_embeddings": not settings.is_true("untie_embeddings_and_output_weights"),
    }
    groups = as_int(find("num_query_groups")) if settings.is_true("group_query_attention") else None
    config["num_key_value_heads"] = groups or heads
    config = _as_llama(config, settings) if gated else _as_gpt2(config, settings, findings)
    findings.record("model.config", config, "--num-layers, --hidden-size and the other flags of the model's shape")
    record_arguments(library("megatron"), "attention", settings, findings)
    if findings.get("model.attention") is None:
        local = as_word(find("transformer_impl")) == "local" and not settings.is_true("use_flash_attn")
        attention = "eager" if local else "flash_attention_2"
        findings.infer("model.attention", attention, "Megatron's usual attention for --transformer-impl")


def _as_llama(config: dict[str, Any], settings: LayeredSettings) -> dict[str, Any]:
    """Return the config of a Llama, or of a Mixtral if there are experts."""
    find = settings.find
    head = as_int(find("kv_channels")) or config["hidden_size"] // config["num_attention_heads"]
    config |= {"model_type": "llama", "head_dim": head}
    if experts := as_int(find("num_experts")):
        config |= {
            "model_type": "mixtral",
            "num_local_experts": experts,
            "num_experts_per_tok": as_int(find("moe_router_topk")) or 2,
            "intermediate_size": as_int(find("moe_ffn_hidden_size")) or config["intermediate_size"],
        }
    return config


def _as_gpt2(config: dict[str, Any], settings: LayeredSettings, findings: FindingCollector) -> dict[str, Any]:
    """Return the config of a GPT-2 with Megatron's dropouts."""
    if (experts := settings.find("num_experts")) is not None:
        sentence = f"{experts.origin}: experts without --swiglu are not counted."
        findings.doubt(sentence, "more", *MODEL_STATES, "activations", unless="model.config")
    rates = [as_float(settings.find(f"{part}_dropout")) for part in ("attention", "hidden")]
    attention, hidden = (0.1 if rate is None else rate for rate in rates)
    return {
        **{library("megatron").words["gpt2"].get(name, name): value for name, value in config.items()},
        "model_type": "gpt2" if config["num_key_value_heads"] == config["num_attention_heads"] else "plain-gpt",
        "activation_function": "gelu",
        "attention_bias": True,
        "mlp_bias": True,
        "attn_pdrop": attention,
        "resid_pdrop": hidden,
        "embd_pdrop": hidden,
    }


def _padded_vocabulary(settings: LayeredSettings) -> int | None:
    """Return the vocabulary, padded to a multiple of ``--make-vocab-size-divisible-by`` times tensor-parallel ranks."""
    padded = as_int(settings.find("padded_vocab_size"))
    if padded:
        return padded
    size = as_int(settings.find("vocab_size"))
    tokenizer = as_word(settings.find("tokenizer_type")) or ("gpt2bpe" if settings.find("merge_file") else "")
    if size is None and "gpt2bpe" in tokenizer:
        size = _GPT2_BPE_VOCABULARY
    if size is None:
        return None
    divisor, tensor = settings.find("make_vocab_size_divisible_by"), settings.find("tensor_model_parallel_size")
    multiple = (as_int(divisor) or 128) * (as_int(tensor) or 1)
    return -(-size // multiple) * multiple


def _read_parallel(program: Program, settings: LayeredSettings) -> None:
    findings, world = program.findings, world_of_tool(program)
    ranks = as_int(world.ranks)
    record_arguments(library("megatron"), "strategy", settings, findings)
    strategy = findings.get("parallel.strategy")
    if strategy is not None and strategy.value == "megatron-fsdp":
        record_arguments(library("megatron"), "fsdp", settings, findings)
    if strategy is None and ranks != 1:
        findings.infer("parallel.strategy", "ddp", "no distributed optimizer")
        _record_replicas(program, world, settings)
    elif ranks != 1:
        record_ranks(program, world, settings, library("megatron"), None)


def _record_replicas(program: Program, world: WorldSize, settings: LayeredSettings) -> None:
    """Record plain data parallelism: complete copies on the ranks that the other dimensions leave."""
    findings = program.findings
    divisor = record_ranks(program, world, settings, library("megatron"), Setting.default(1, "no sharding"))
    total = as_int(world.ranks)
    if total is None or world.ranks is None:
        findings.require("parallel.data_replicate")
    elif total % divisor == 0:
        findings.record("parallel.data_replicate", total // divisor, world.ranks.origin)


TOOL = known_tool(
    "megatron",
    read,
    is_own=lambda table: {"num_layers", "hidden_size", "micro_batch_size"} <= {key.replace("-", "_") for key in table},
)
