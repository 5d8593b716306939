"""vLLM: ``vllm serve MODEL`` and its older server module.

Names, meanings and defaults: ``vllm/engine/arg_utils.py`` and ``vllm/config`` of the versions 0.6 to 0.33.
"""

from ...job.rules.library_defaults import SEQUENCES, SHARE, usual
from ..arguments.table import library
from ..program.program import Program
from ..source.evidence import FindingCollector, JobReading
from ..source.settings import LayeredSettings, Setting, as_int, is_open
from .shared.own_loop import read_server, record_length, record_share
from .shared.settings_files import tool_layers
from .shared.tool import known_tool

_UNITS = {"k": 1000, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""Suffixes of counts and sizes: ``32k`` is 32,000 and ``32K`` 32,768."""


def read(program: Program) -> JobReading:
    """Return the job of a vLLM server."""
    findings, version = program.findings, program.versions.get("vllm")
    settings = LayeredSettings(*tool_layers(program, "config"))
    arguments, named = program.launch.arguments, settings.find("model", "model_tag")
    if arguments[:1] == ("serve",) and arguments[1:] and not arguments[1].startswith("-"):
        named = Setting(value=arguments[1], origin="vllm serve's argument")
    config = read_server(program, settings, named, library("vllm"))
    length = settings.find("max_model_len")
    if length is not None and str(length.value) in ("auto", "-1"):
        findings.warn(f"{length.origin}: vLLM chooses a length that fits its cache; the model's own length is assumed.")
        length = None
    length = length.with_value(_count(length) or length.value) if length is not None else None
    record_length(findings, length, config, "vLLM's default max_model_len")
    origin = "vLLM's default max_num_seqs (1024 on large GPUs)"
    sequences = settings.find("max_num_seqs") or Setting.default(int(usual("vllm", SEQUENCES, {})), origin)
    findings.record_count("training.micro_batch", sequences)
    _record_size(findings, "inference.prefill_tokens", settings.find("max_num_batched_tokens"), "number of tokens")
    cache = settings.find("kv_cache_memory_bytes", "kv_cache_memory")
    _record_size(findings, "inference.cache_bytes", cache if cache and not is_open(cache) else None, "size in bytes")
    value = float(usual("vllm", SHARE, {"vllm": version}))
    default = Setting.default(value, f"vLLM {version or '0.20 and newer'}'s default gpu_memory_utilization")
    record_share(findings, SHARE, settings.find("gpu_memory_utilization") or default, whole=True)
    copies = settings.find("data_parallel_size", "dp")
    if copies is not None and as_int(copies) != 1:
        findings.record_count("parallel.data_replicate", copies)
        if settings.is_true("enable_expert_parallel"):
            findings.warn("--enable-expert-parallel: all experts are counted on each data-parallel rank.")
    return findings.build()


def _record_size(findings: FindingCollector, key: str, setting: Setting | None, what: str) -> None:
    if setting is not None and (size := _count(setting)):
        findings.record_from(setting, key, size)
    elif setting is not None:
        findings.refuse(key, setting, what)


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


TOOL = known_tool("vllm", read)
