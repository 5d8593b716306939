"""vLLM: ``vllm serve MODEL`` and its older server module.

Names, meanings and defaults: vllm/engine/arg_utils.py and vllm/config.
"""

from collections.abc import Mapping
from typing import Any

from ..program.program import Program
from ..source.evidence import FindingCollector, JobReading
from ..source.settings import LayeredSettings, Setting, as_int, as_word
from ..trainer.model_facts import known_config
from .shared.job_keys import put_int, put_word
from .shared.merged_settings import tool_layers

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
_STORED = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp16"}
"""``--dtype auto``: checkpoints in fp32 are served in 16 bits."""
_WEIGHTS = {
    **dict.fromkeys(("fp8", "fbgemm_fp8", "modelopt", "ptpc_fp8"), "fp8"),
    **dict.fromkeys(("awq", "gptq", "awq_marlin", "gptq_marlin", "bitsandbytes", "moe_wna16", "auto_round"), "int4"),
    **dict.fromkeys(("experts_int8",), "int8"),
}
_CACHE = {"auto": "auto", "bfloat16": "auto", "float16": "auto"}
_SEQUENCES = 256
_MULTIPLIERS = {"k": 1000, "m": 1_000_000}
_BINARY = {"K": 1024, "M": 1024**2}


def read(program: Program) -> JobReading:
    """The job of a vLLM server."""
    findings = program.findings
    arguments = list(program.launch.arguments)
    settings = LayeredSettings(*tool_layers(program, "config"))
    _model(settings, arguments, program)
    findings.put("training.mode", "inference", "the program is vLLM", written=False)
    findings.put("inference.engine", "vllm", "the program is vLLM", written=False)
    config = known_config(findings.get("model.id"), program.environ) or {}
    _sizes(settings, config, findings)
    _types(settings, config, findings)
    _parallel(settings, findings)
    if settings.is_true("enable_lora"):
        findings.warn("--enable-lora: the adapters' slots are not counted.")
    for name in ("cpu_offload_gb", "speculative_config", "kv_cache_memory_bytes", "num_gpu_blocks_override"):
        if (found := settings.find(name)) is not None and str(found.value) not in ("0", "0.0"):
            findings.warn(f"{found.origin} changes the memory and is not counted.")
    return findings.build()


def _model(settings: LayeredSettings, arguments: list[str], program: Program) -> None:
    words = arguments[1:] if arguments[:1] == ["serve"] else []
    named = settings.find("model", "model_tag")
    if words and not words[0].startswith("-"):
        named = Setting(value=words[0], origin="vllm serve's argument")
    if named is None:
        return
    folder = program.filesystem.resolve(str(named.value))
    is_folder = (folder / "config.json").is_file()
    program.findings.put("model.id", str(folder) if is_folder else str(named.value), named.origin)


def _sizes(settings: LayeredSettings, config: Mapping[str, Any], findings: FindingCollector) -> None:
    length = settings.find("max_model_len")
    number = _count(length)
    if length is not None and number:
        findings.put("training.sequence_length", number, length.origin)
    elif isinstance(longest := config.get("max_position_embeddings"), int):
        origin = "the model's max_position_embeddings: vLLM's default max_model_len"
        findings.put("training.sequence_length", longest, origin, written=False)
    sequences = settings.find("max_num_seqs") or Setting(
        value=_SEQUENCES, origin="vLLM's default max_num_seqs (1024 on large cards)", written=False
    )
    put_int(findings, "training.micro_batch", sequences)
    step = settings.find("max_num_batched_tokens")
    if step is not None and (tokens := _count(step)):
        findings.put("inference.prefill_tokens", tokens, step.origin)
    share = settings.find("gpu_memory_utilization")
    if share is None:
        findings.put("inference.gpu_memory_utilization", 0.9, "vLLM's default gpu_memory_utilization", written=False)
        return
    try:
        findings.put("inference.gpu_memory_utilization", float(share.value), share.origin)
    except (TypeError, ValueError):
        findings.warn(f"{share.origin}: {share.value!r} is not a share of the card; 0.9 is counted.")


def _types(settings: LayeredSettings, config: Mapping[str, Any], findings: FindingCollector) -> None:
    dtype = settings.find("dtype")
    stored = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if dtype is not None and as_word(dtype) != "auto":
        put_word(findings, "training.precision", dtype, _DTYPES)
    else:
        origin = "vLLM computes in the type the model is stored in"
        findings.put("training.precision", _STORED.get(stored, "bf16"), origin, written=False)
    cache = settings.find("kv_cache_dtype")
    if cache is not None and (as_word(cache) or "").startswith("fp8"):
        findings.put("inference.cache_dtype", "fp8", cache.origin)
    elif cache is not None:
        put_word(findings, "inference.cache_dtype", cache, _CACHE)
    _weights(settings.find("quantization"), config.get("quantization_config"), findings)


def _weights(asked: Setting | None, stored: object, findings: FindingCollector) -> None:
    """``--quantization``, else what the model's config says of its checkpoint."""
    if asked is None and isinstance(stored, Mapping):
        method = str(stored.get("quant_method") or "")
        origin = "the model's quantization_config"
        bits = stored.get("bits")
        if bits == 8 or method == "compressed-tensors":
            findings.warn(f"{origin} ({method or bits}) is counted as 8 bits per weight.")
            findings.put("inference.weights", "int8", origin, written=False)
        elif method in _WEIGHTS:
            findings.put("inference.weights", _WEIGHTS[method], origin, written=False)
        elif method:
            findings.warn(f"{origin}: {method} is not known here; 16 bits per weight are counted.")
    elif asked is not None:
        put_word(findings, "inference.weights", asked, _WEIGHTS)


def _parallel(settings: LayeredSettings, findings: FindingCollector) -> None:
    put_int(findings, "parallel.tensor", settings.find("tensor_parallel_size", "tp"))
    put_int(findings, "parallel.pipeline", settings.find("pipeline_parallel_size", "pp"))
    copies = settings.find("data_parallel_size", "dp")
    if copies is not None and (as_int(copies) or 1) > 1:
        put_int(findings, "parallel.data_replicate", copies)
        if settings.is_true("enable_expert_parallel"):
            findings.warn("--enable-expert-parallel: experts are counted whole on each data-parallel rank.")


def _count(setting: Setting | None) -> int | None:
    """A number of tokens, also as ``32k`` (thousands) or ``32K`` (1024 each)."""
    if setting is None:
        return None
    text = str(setting.value)
    unit = _MULTIPLIERS.get(text[-1:]) or _BINARY.get(text[-1:])
    if unit is None:
        return as_int(setting)
    try:
        return int(float(text[:-1]) * unit)
    except (ValueError, OverflowError):
        return None
