"""Megatron-FSDP, once nvFSDP, under Automodel: its keys, and what Megatron-FSDP itself makes of them.

Megatron-FSDP turns both overlaps on where it shards what they move, builds double buffers for user buffers of NCCL,
and refuses a strategy that it does not know (megatron_fsdp.py, fully_shard.py, param_and_grad_buffer.py of core 0.16).
"""

from ...program import Program
from ...source import MEGATRON_SHARDING, FindingCollector, LayeredSettings, Setting, as_bool, as_word, default_setting
from ...trainer import known_config
from ..shared import record_bool
from .precision import reduces_in_fp32
from .strategies import version_of

_REFUSED = {"params": "gradients and optimizer states whole", "grads_params": "optimizer states whole"}
"""Strategies that only Automodel's and nvFSDP's documentation name, and what they would leave whole by their names."""
_FP8_COPIES = ("transposed fp8 weights stay", "weights", "communication")
_DOUBTS = {
    "disable_bucketing": ("one bucket holds all that lies outside of the units", "communication"),
    "keep_fp8_transpose_cache": _FP8_COPIES,
    "keep_fp8_transpose_cache_when_using_custom_fsdp": _FP8_COPIES,
    "report_nan_in_param_grad": ("gradients are checked one by one", "gradients"),
}
"""Switches that keep more: why, and the components that may be larger."""
_UNIT_NAMES = ("distributed.nvfsdp_unit_modules", "distributed.megatron_fsdp_unit_modules")
_LLAMA_BLOCK = "transformers.models.llama.modeling_llama.LlamaDecoderLayer"


def read_megatron_fsdp(program: Program, settings: LayeredSettings) -> None:
    """Record how Megatron-FSDP shards, in which units, and what its buffers keep."""
    findings = program.findings
    _read_sharding(settings, findings)
    _read_units(program, settings)
    user_buffers = settings.find_true("distributed.nccl_ub")
    record_bool(findings, "parallel.double_buffer", user_buffers or settings.find("distributed.fsdp_double_buffer"))
    if user_buffers is not None:
        findings.warn(f"{user_buffers.origin}: NCCL's user buffers lie in a memory pool of their own, not counted.")
        findings.add_uncertainty("more", "communication")
    reduced = reduces_in_fp32(settings)
    findings.record_from(reduced, "parallel.reduce_dtype", "fp32" if as_bool(reduced) else "bf16")
    preserved = settings.find("distributed.preserve_fp32_weights")
    default = default_setting(False, "Automodel's default preserve_fp32_weights")
    record_bool(findings, "parallel.main_weights", preserved or default)
    _doubt_buffers(settings, findings)


def _read_sharding(settings: LayeredSettings, findings: FindingCollector) -> None:
    written = settings.find("distributed.data_parallel_sharding_strategy", "distributed.zero_dp_strategy")
    chosen = written or default_setting("optim_grads_params", "Automodel's default sharding")
    word = as_word(chosen) or ""
    if word in MEGATRON_SHARDING:
        findings.record_from(chosen, "parallel.sharding", MEGATRON_SHARDING[word])
        return
    left = _REFUSED.get(word)
    what = f"it would leave {left}" if left else "it is not known"
    findings.record_from(chosen, "parallel.sharding", "none")  # the most that it can mean
    sentence = f"{chosen.origin}: Megatron-FSDP has no strategy {word!r}; {what}: nothing sharded is counted at most."
    findings.mark_uncertain("parallel.sharding", sentence, direction="less")


def _read_units(program: Program, settings: LayeredSettings) -> None:
    """Record what is gathered at once: blocks, or the whole model where no unit is named, or none matches.

    The default names Llama's block before 0.5; since then, the classes that the model itself does not split.
    """
    findings = program.findings
    null = settings.find_unset(*_UNIT_NAMES)
    written, since = settings.find(*_UNIT_NAMES), version_of(program) >= (0, 5)
    if null is not None and null.value is None and ("nvfsdp" in null.origin or not since):
        findings.record_from(null, "parallel.fsdp_units", "model")
        return
    if written is None and (since or settings.find("distributed.nvfsdp_unit_modules") is None):
        written = None if since else default_setting([_LLAMA_BLOCK], "Automodel's default unit modules")
    if written is None:
        return
    classes = written.value if isinstance(written.value, list) else [written.value]
    names = [str(each).rpartition(".")[2] for each in classes]
    block = _block_prefix(program)
    if block is not None and not any(name.lower().startswith(block) for name in names):
        sentence = f"{written.origin}: no unit is a block of this model, so that all of it is gathered at once."
        findings.warn(sentence, unless="parallel.fsdp_units")
        findings.record_from(written, "parallel.fsdp_units", "model")
    elif not any(name.endswith(("Layer", "Block", "DecoderLayer")) for name in names):
        sentence = f"{written.origin}: the units {', '.join(names)} are counted as whole blocks."
        findings.mark_uncertain("parallel.fsdp_units", sentence)


def _block_prefix(program: Program) -> str | None:
    """Return the beginning of the names of the model's classes in lower case; None: its config is not known."""
    config = known_config(program.findings.get("model.id"), program.environ) or {}
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    if isinstance(first, str) and "For" in first:
        return first.partition("For")[0].lower()
    family = config.get("model_type")
    return family.removesuffix("_text").replace("_", "") if isinstance(family, str) else None


def _doubt_buffers(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Doubt communication buffers where overlaps, buckets or fp8 copies differ from what is counted."""
    sharding = findings.get("parallel.sharding")
    forced = sharding is not None and sharding.value in ("optim_grads", "optim_grads_params")
    for name in ("overlap_grad_reduce", "overlap_param_gather"):
        off = settings.find(f"distributed.{name}")
        only_params = name == "overlap_param_gather" and sharding is not None and sharding.value == "optim_grads"
        if off is None or as_bool(off) is not False:
            continue
        if forced and not only_params:
            findings.warn(f"{off.origin} has no effect: Megatron-FSDP overlaps what it shards.")
        else:
            findings.warn(f"{off.origin}: without overlap all buckets are communicated at once, which is not counted.")
            findings.add_uncertainty("more", "communication")
    for name, (why, *components) in _DOUBTS.items():
        _doubt(settings, findings, name, why, *components)
    for name in ("init_nvfsdp_with_meta_device", "init_fsdp_with_meta_device"):
        settings.find(f"distributed.{name}")  # while loading only: weights are made shard by shard
    for name in ("average_in_collective", "calculate_per_token_loss", "check_for_nan_in_grad"):
        settings.find(f"distributed.{name}")  # no bytes


def _doubt(settings: LayeredSettings, findings: FindingCollector, name: str, why: str, *components: str) -> None:
    switched: Setting | None = settings.find_true(f"distributed.{name}")
    if switched is not None:
        findings.warn(f"{switched.origin}: {why}, which is not counted.")
        findings.add_uncertainty("more", *components)  # type: ignore[arg-type]
