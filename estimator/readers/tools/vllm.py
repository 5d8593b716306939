"""vLLM: ``vllm serve MODEL`` and its older server module.

Names, meanings and defaults: ``vllm/engine/arg_utils.py`` and ``vllm/config`` of the versions 0.6 to 0.33.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from ...job.resolved_job import served_precision
from ...job.rules.frameworks import SEQUENCES, SHARE, usual
from ...model.checkpoint import WEIGHT_FORMATS, stored_dtype
from ..arguments.table import doubt_arguments, library, record_arguments
from ..program.program import Program, ToolCommand
from ..source.evidence import (
    FindingCollector,
    JobReading,
    LayeredSettings,
    Setting,
    as_int,
    as_word,
    default_setting,
    is_open,
)
from ..trainer.trainer_program import known_config
from .shared import (
    Tool,
    has_any,
    record_share,
    record_word,
    tool_layers,
)

_UNITS = {"k": 1000, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""Suffixes of counts and sizes: ``32k`` is 32,000 and ``32K`` 32,768."""


def read(program: Program) -> JobReading:
    """Return the job of a vLLM server."""
    findings = program.findings
    settings = LayeredSettings(*tool_layers(program, "config"))
    _read_model(settings, program)
    findings.record("training.mode", "inference", "the program is vLLM", written=False)
    findings.record("inference.engine", "vllm", "the program is vLLM", written=False)
    config = known_config(findings.get("model.id"), program.environ) or {}
    _read_sizes(settings, config, findings)
    _read_memory_share(settings, program)
    _read_dtypes(settings, config, findings)
    _read_parallel(settings, findings)
    _read_switches(settings, program)
    return findings.build()


def _read_switches(settings: LayeredSettings, program: Program) -> None:
    findings = program.findings
    if settings.is_true("enforce_eager"):
        findings.record("inference.cuda_graphs", False, "--enforce-eager")
    doubt_arguments(library("vllm"), "all", settings, findings)


def _read_model(settings: LayeredSettings, program: Program) -> None:
    arguments = program.launch.arguments
    words = arguments[1:] if arguments[:1] == ("serve",) else ()
    named = settings.find("model", "model_tag")
    if words and not words[0].startswith("-"):
        named = Setting(value=words[0], origin="vllm serve's argument")
    if named is None:
        return
    folder = program.filesystem.resolve(str(named.value))
    is_folder = (folder / "config.json").is_file()
    program.findings.record_from(named, "model.id", str(folder) if is_folder else str(named.value))


def _read_sizes(settings: LayeredSettings, config: Mapping[str, Any], findings: FindingCollector) -> None:
    length = settings.find("max_model_len")
    if length is not None and str(length.value) in ("auto", "-1"):
        findings.warn(f"{length.origin}: vLLM chooses a length that fits its cache; the model's own length is assumed.")
        length = None
    if length is not None and not is_open(length) and _count(length) is None:
        findings.refuse("training.sequence_length", length)
    if length is not None and (tokens := _count(length)):
        findings.record_from(length, "training.sequence_length", tokens)
    elif isinstance(longest := config.get("max_position_embeddings"), int):
        origin = "the model's max_position_embeddings: vLLM's default max_model_len"
        findings.record("training.sequence_length", longest, origin, written=False)
    origin = "vLLM's default max_num_seqs (1024 on large GPUs)"
    sequences = settings.find("max_num_seqs") or default_setting(int(usual("vllm", SEQUENCES, {})), origin)
    findings.record_count("training.micro_batch", sequences)
    step = settings.find("max_num_batched_tokens")
    if step is not None and (tokens := _count(step)):
        findings.record_from(step, "inference.prefill_tokens", tokens)
    elif step is not None:
        findings.refuse("inference.prefill_tokens", step, "number of tokens")


def _read_memory_share(settings: LayeredSettings, program: Program) -> None:
    findings, version = program.findings, program.versions.get("vllm")
    cache = settings.find("kv_cache_memory_bytes", "kv_cache_memory")
    if cache is not None and (size := _count(cache)):
        findings.record_from(cache, "inference.cache_bytes", size)
    elif cache is not None and not is_open(cache):
        findings.refuse("inference.cache_bytes", cache, "size in bytes")
    value = float(usual("vllm", SHARE, {"vllm": version}))
    default = default_setting(value, f"vLLM {version or '0.20 and newer'}'s default gpu_memory_utilization")
    share = settings.find("gpu_memory_utilization") or default
    record_share(findings, "inference.gpu_memory_utilization", share, whole=True)


def _read_dtypes(settings: LayeredSettings, config: Mapping[str, Any], findings: FindingCollector) -> None:
    dtype = settings.find("dtype")
    if dtype is not None and as_word(dtype) != "auto":
        record_arguments(library("vllm"), "weights", settings, findings)
    else:
        origin = "vLLM computes in the model's stored dtype"
        findings.record("training.precision", served_precision(stored_dtype(config)), origin, written=False)
    record_arguments(library("vllm"), "cache", settings, findings)
    quantization, stored_quantization = settings.find("quantization"), config.get("quantization_config")
    if quantization is not None:
        record_word(findings, "inference.weights", quantization, WEIGHT_FORMATS)
    elif isinstance(stored_quantization, Mapping):
        _read_stored_quantization(stored_quantization, findings)


def _read_stored_quantization(quantization: Mapping[str, Any], findings: FindingCollector) -> None:
    """Record the format of the checkpoint's weights, from the model's config."""
    method, bits = str(quantization.get("quant_method") or ""), quantization.get("bits")
    origin = "the model's quantization_config"
    if bits == 8 or method == "compressed-tensors":
        findings.warn(f"{origin} ({method or bits}) is counted as 8 bits per weight.")
        findings.record("inference.weights", "int8", origin, written=False)
    elif method in WEIGHT_FORMATS:
        findings.record("inference.weights", WEIGHT_FORMATS[method], origin, written=False)
    elif method:
        findings.warn(f"{origin}: {method} is not supported; 16 bits per weight are assumed.")


def _read_parallel(settings: LayeredSettings, findings: FindingCollector) -> None:
    record_arguments(library("vllm"), "parallel", settings, findings)
    copies = settings.find("data_parallel_size", "dp")
    if copies is not None and as_int(copies) != 1:
        findings.record_count("parallel.data_replicate", copies)
        if settings.is_true("enable_expert_parallel"):
            findings.warn("--enable-expert-parallel: all experts are counted on each data-parallel rank.")


def _count(setting: Setting) -> int | None:
    """Return a number of tokens or bytes, which may have a unit."""
    text = str(setting.value)
    unit = _UNITS.get(text[-1:])
    if unit is None:
        return as_int(setting)
    try:
        return int(float(text[:-1]) * unit)
    except (ValueError, OverflowError):
        return None


TOOL = Tool(
    name="vLLM",
    programs=re.compile(r"(.*/)?vllm|vllm\.entrypoints\.((openai\.)?api_server|cli\.main)"),
    commands=(ToolCommand(name="vllm", subcommands=frozenset({"serve"})),),
    is_config=lambda table: has_any(table, "gpu-memory-utilization", "max-model-len", "max-num-seqs"),
    read=read,
    table=partial(library, "vllm"),
)
