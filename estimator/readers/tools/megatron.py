"""Megatron-LM: the flags of ``pretrain_gpt.py``, which describe the model too.

Names, meanings and defaults: ``megatron/training/arguments.py`` and ``megatron/core/transformer``.
"""

from typing import Any

from ..program.program import Program
from ..program.ranks import WorldSize, read_world_size
from ..source.evidence import FindingCollector, JobReading
from ..source.settings import LayeredSettings, Setting, as_bool, as_int, as_word
from ..trainer.unread_settings import warn_of_unread
from .shared.job_keys import put_bool, put_int, put_ranks, put_word
from .shared.merged_settings import tool_settings

_SHARDING = {
    "no_shard": "none",
    "optim": "optim",
    "optim_grads": "optim_grads",
    "optim_grads_params": "optim_grads_params",
}
_ATTENTION = {"flash": "flash_attention_2", "fused": "flash_attention_2", "unfused": "eager", "local": "eager"}


def read(program: Program) -> JobReading:
    """The job of a Megatron-LM command line."""
    findings, settings = program.findings, tool_settings(program, "yaml_cfg")
    findings.put("training.framework", "megatron", "the program is Megatron-LM's")
    if settings.is_true("use_checkpoint_args"):
        findings.warn("--use-checkpoint-args takes the model's shape from a checkpoint, which is not read.")
    _model(settings, findings)
    put_int(findings, "training.micro_batch", settings.find("micro_batch_size"))
    put_int(findings, "training.sequence_length", settings.find("seq_length", "encoder_seq_length"))
    half = next((name for name in ("bf16", "fp16") if settings.is_true(name)), None)
    said = settings.find(half) if half else None
    origin = said.origin if said is not None else "neither --bf16 nor --fp16"
    findings.put("training.precision", f"{half}-mixed" if half else "fp32", origin)
    _reduction(half, settings, findings)
    optimizer = settings.find("optimizer") or Setting(value="adam", origin="Megatron's default", written=False)
    put_word(findings, "training.optimizer", optimizer, {"adam": "adamw-fused", "sgd": "sgd-momentum", "muon": "muon"})
    _recompute(settings, findings)
    _parallel(program, settings)
    if (total := settings.find("global_batch_size")) is not None:
        findings.put_global_batch(as_int(total), total.origin)
    warn_of_unread(settings, findings)
    return findings.build()


def _reduction(half: str | None, settings: LayeredSettings, findings: FindingCollector) -> None:
    """Gradients of bf16 are kept and reduced in fp32 unless told otherwise, those of fp16 only if asked for."""
    in_bf16, in_fp32 = settings.find("grad_reduce_in_bf16"), settings.find("accumulate_allreduce_grads_in_fp32")
    if half == "bf16" and in_bf16 is not None and as_bool(in_bf16):
        findings.put("parallel.reduce_dtype", "bf16", in_bf16.origin)
    elif half == "fp16" and not as_bool(in_fp32):
        findings.put("parallel.reduce_dtype", "fp16", "Megatron's default with --fp16", written=False)


def _model(settings: LayeredSettings, findings: FindingCollector) -> None:
    """The shape as a Hugging Face config: a Llama with SwiGLU, else a GPT-2."""
    find = settings.find
    sizes = {name: as_int(find(name)) for name in ("num_layers", "hidden_size", "num_attention_heads")}
    if None in sizes.values():
        return
    layers, hidden, heads = (sizes[name] or 1 for name in ("num_layers", "hidden_size", "num_attention_heads"))
    vocab = _vocab(settings)
    if vocab is None:
        findings.warn("No --vocab-size says how large the vocabulary is; give model.config or model.id.")
        return
    gated = settings.is_true("swiglu")
    ffn = as_int(find("ffn_hidden_size")) or (int(hidden * 4 * 2 / 3 / 64) * 64 if gated else 4 * hidden)
    positions = as_int(find("max_position_embeddings")) or as_int(find("seq_length")) or 1024
    tied = not settings.is_true("untie_embeddings_and_output_weights")
    shape = _Shape(layers=layers, hidden=hidden, heads=heads, ffn=ffn, vocab=vocab, positions=positions, tied=tied)
    config = shape.llama(settings) if gated else shape.gpt2(settings)
    findings.put("model.config", config, "--num-layers, --hidden-size and the other flags of the model's shape")
    put_word(findings, "model.attention", find("attention_backend"), _ATTENTION)
    if findings.get("model.attention") is None:
        local = as_word(find("transformer_impl")) == "local" and not settings.is_true("use_flash_attn")
        chosen = "eager" if local else "flash_attention_2"
        findings.put("model.attention", chosen, "Megatron's usual attention for --transformer-impl", written=False)


class _Shape:
    """Sizes of a model, and the configs they make."""

    def __init__(self, **sizes: Any) -> None:
        self.sizes = sizes

    def llama(self, settings: LayeredSettings) -> dict[str, Any]:
        """A Llama, or a Mixtral with experts."""
        sizes, find = self.sizes, settings.find
        groups = as_int(find("num_query_groups")) if settings.is_true("group_query_attention") else None
        config = {
            "model_type": "llama",
            "num_hidden_layers": sizes["layers"],
            "hidden_size": sizes["hidden"],
            "intermediate_size": sizes["ffn"],
            "num_attention_heads": sizes["heads"],
            "num_key_value_heads": groups or sizes["heads"],
            "head_dim": as_int(find("kv_channels")) or sizes["hidden"] // sizes["heads"],
            "vocab_size": sizes["vocab"],
            "max_position_embeddings": sizes["positions"],
            "tie_word_embeddings": sizes["tied"],
        }
        experts = as_int(find("num_experts"))
        if experts:
            config |= {
                "model_type": "mixtral",
                "num_local_experts": experts,
                "num_experts_per_tok": as_int(find("moe_router_topk")) or 2,
                "intermediate_size": as_int(find("moe_ffn_hidden_size")) or sizes["ffn"],
            }
        return config

    def gpt2(self, settings: LayeredSettings) -> dict[str, Any]:
        """A GPT-2, with Megatron's dropouts."""
        sizes, find = self.sizes, settings.find
        attention, hidden = (_number(find(name), 0.1) for name in ("attention_dropout", "hidden_dropout"))
        return {
            "model_type": "gpt2",
            "n_layer": sizes["layers"],
            "n_embd": sizes["hidden"],
            "n_head": sizes["heads"],
            "n_inner": sizes["ffn"],
            "n_positions": sizes["positions"],
            "vocab_size": sizes["vocab"],
            "activation_function": "gelu",
            "tie_word_embeddings": sizes["tied"],
            "attn_pdrop": attention,
            "resid_pdrop": hidden,
            "embd_pdrop": hidden,
        }


def _number(setting: Setting | None, default: float) -> float:
    try:
        return float(str(setting.value)) if setting is not None else default
    except ValueError:
        return default


def _vocab(settings: LayeredSettings) -> int | None:
    """Padded to a multiple of ``--make-vocab-size-divisible-by`` times the tensor-parallel ranks."""
    padded = as_int(settings.find("padded_vocab_size"))
    if padded:
        return padded
    size = as_int(settings.find("vocab_size"))
    if size is None and "gpt2bpe" in str(as_word(settings.find("tokenizer_type"))):
        size = 50257
    if size is None:
        return None
    multiple = (as_int(settings.find("make_vocab_size_divisible_by")) or 128) * (
        as_int(settings.find("tensor_model_parallel_size")) or 1
    )
    return -(-size // multiple) * multiple


def _recompute(settings: LayeredSettings, findings: FindingCollector) -> None:
    granularity = settings.find("recompute_granularity")
    if granularity is None and settings.is_true("recompute_activations"):
        found = settings.find("recompute_activations")
        findings.put(
            "training.activation_checkpointing", "selective", found.origin if found else "recompute_activations"
        )
        return
    put_word(findings, "training.activation_checkpointing", granularity, {"full": "full", "selective": "selective"})
    layers = as_int(settings.find("recompute_num_layers"))
    if granularity is not None and as_word(granularity) == "full" and layers and layers > 1:
        sentence = "--recompute-num-layers: blocks of several layers are counted as if each layer were recomputed."
        findings.mark_uncertain("training.activation_checkpointing", sentence)


def _parallel(program: Program, settings: LayeredSettings) -> None:
    findings, find = program.findings, settings.find
    world = (
        read_world_size(program.launcher, LayeredSettings(), program.environ)
        if program.config_file is None
        else WorldSize(ranks=None)
    )
    distributed = settings.find("use_distributed_optimizer")
    fsdp, torch_fsdp = find("use_megatron_fsdp", "use_custom_fsdp"), find("use_torch_fsdp2")
    sizes = {
        "tensor": find("tensor_model_parallel_size"),
        "pipeline": find("pipeline_model_parallel_size"),
        "context": find("context_parallel_size"),
        "expert": find("expert_model_parallel_size"),
    }
    put_bool(findings, "parallel.sequence_parallel", find("sequence_parallel"))
    offload = find("optimizer_cpu_offload")
    if offload is not None and as_bool(offload):
        findings.put("parallel.cpu_offload", "optimizer", offload.origin)
    ranks = as_int(world.ranks)
    if as_bool(fsdp) and fsdp is not None:
        findings.put("parallel.strategy", "megatron-fsdp", fsdp.origin)
        put_word(findings, "parallel.sharding", find("data_parallel_sharding_strategy"), _SHARDING)
        put_bool(findings, "parallel.double_buffer", find("fsdp_double_buffer"))
    elif as_bool(torch_fsdp) and torch_fsdp is not None:
        findings.put("parallel.strategy", "fsdp2", torch_fsdp.origin)
    elif as_bool(distributed) and distributed is not None:
        findings.put("parallel.strategy", "zero1", f"{distributed.origin}: optimizer states are sharded")
    elif ranks is None or ranks > 1:
        findings.put("parallel.strategy", "ddp", "no distributed optimizer", written=False)
        _replicas(program, world, sizes)
        return
    if ranks == 1:
        return
    put_ranks(program, world, sizes, None)
    if find("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank") is not None:
        findings.warn("Virtual pipeline stages are not counted: they keep more micro-batches' activations.")
        findings.add_uncertainty("more", "activations")


def _replicas(program: Program, world: WorldSize, sizes: dict[str, Setting | None]) -> None:
    """Plain data parallelism: whole copies on what the other dimensions leave."""
    put_ranks(program, world, sizes, Setting(value=1, origin="no sharding", written=False))
    taken = 1
    for name in ("tensor", "pipeline", "context"):
        taken *= as_int(sizes[name]) or 1
    total = as_int(world.ranks)
    if total is None or world.ranks is None:
        program.findings.require("parallel.data_replicate")
    elif total % taken == 0:
        program.findings.put("parallel.data_replicate", total // taken, world.ranks.origin)
