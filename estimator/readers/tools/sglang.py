"""SGLang: ``python -m sglang.launch_server`` and ``sglang serve``.

Names, meanings and defaults: ``sglang/srt/server_args.py`` of the versions 0.4 to 0.5.
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
from ..source.evidence import FindingCollector, JobReading, LayeredSettings, as_word, default_setting, is_open
from ..trainer.trainer_program import known_config
from .shared import (
    Tool,
    has_any,
    record_share,
    record_word,
    tool_layers,
)


def read(program: Program) -> JobReading:
    """Return the job of an SGLang server."""
    findings = program.findings
    settings = LayeredSettings(*tool_layers(program, "config"))
    named = settings.find("model_path", "model")
    if named is not None:
        folder = program.filesystem.resolve(str(named.value))
        is_folder = (folder / "config.json").is_file()
        findings.record_from(named, "model.id", str(folder) if is_folder else str(named.value))
    findings.record("training.mode", "inference", "the program is SGLang", written=False)
    findings.record("inference.engine", "sglang", "the program is SGLang", written=False)
    config = known_config(findings.get("model.id"), program.environ) or {}
    _read_sizes(settings, config, findings)
    _read_share(settings, findings)
    _read_types(settings, config, findings)
    record_arguments(library("sglang"), "parallel", settings, findings)
    doubt_arguments(library("sglang"), "all", settings, findings)
    copies = settings.find("data_parallel_size", "dp_size", "dp")
    if copies is not None and not settings.is_true("enable_dp_attention"):
        findings.record_count("parallel.data_replicate", copies)
    if settings.is_true("disable_cuda_graph"):
        findings.record("inference.cuda_graphs", False, "--disable-cuda-graph")
    return findings.build()


def _read_sizes(settings: LayeredSettings, config: Mapping[str, Any], findings: FindingCollector) -> None:
    if (length := settings.find("context_length")) is not None:
        findings.record_count("training.sequence_length", length)
    elif isinstance(longest := config.get("max_position_embeddings"), int):
        origin = "the model's max_position_embeddings: SGLang's default context_length"
        findings.record("training.sequence_length", longest, origin, written=False)
    default = default_setting(int(usual("sglang", SEQUENCES, {})), "SGLang's cache limits the number of requests")
    findings.record_count("training.micro_batch", settings.find("max_running_requests") or default)
    step = settings.find("chunked_prefill_size")
    if step is not None and str(step.value) != "-1":
        findings.record_count("inference.prefill_tokens", step)


def _read_share(settings: LayeredSettings, findings: FindingCollector) -> None:
    share = settings.find("mem_fraction_static")
    if share is None or is_open(share):  # decided at its start by rules that differ from version to version
        findings.require(SHARE)
        return
    record_share(findings, SHARE, share, whole=False)


def _read_types(settings: LayeredSettings, config: Mapping[str, Any], findings: FindingCollector) -> None:
    dtype = settings.find("dtype")
    if dtype is not None and as_word(dtype) != "auto":
        record_arguments(library("sglang"), "weights", settings, findings)
    else:
        origin = "SGLang computes in the model's stored dtype"
        findings.record("training.precision", served_precision(stored_dtype(config)), origin, written=False)
    record_arguments(library("sglang"), "cache", settings, findings)
    quantization, stored_quantization = settings.find("quantization"), config.get("quantization_config")
    if quantization is not None:
        record_word(findings, "inference.weights", quantization, WEIGHT_FORMATS)
    elif isinstance(stored_quantization, Mapping):
        method = str(stored_quantization.get("quant_method") or "")
        if method in WEIGHT_FORMATS:
            origin = "the model's quantization_config"
            findings.record("inference.weights", WEIGHT_FORMATS[method], origin, written=False)
        else:
            findings.warn(
                f"the model's quantization_config: {method} is not supported; 16 bits per weight are assumed."
            )


TOOL = Tool(
    name="SGLang",
    programs=re.compile(r"(.*/)?sglang|sglang\.launch_server"),
    commands=(ToolCommand(name="sglang", subcommands=frozenset({"serve"})),),
    is_config=lambda table: has_any(table, "mem-fraction-static", "mem_fraction_static"),
    read=read,
    table=partial(library, "sglang"),
)
