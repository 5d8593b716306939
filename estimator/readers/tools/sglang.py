"""SGLang: ``python -m sglang.launch_server`` and ``sglang serve``.

Names, meanings and defaults: ``sglang/srt/server_args.py`` of the versions 0.4 to 0.5.
"""

from ...job.rules.library_defaults import SEQUENCES, SHARE, usual
from ..arguments.table import library
from ..program.program import Program
from ..source.evidence import JobReading
from ..source.settings import LayeredSettings, Setting, is_open
from .shared.own_loop import read_server, record_length, record_share
from .shared.settings_files import tool_layers
from .shared.tool import known_tool


def read(program: Program) -> JobReading:
    """Return the job of an SGLang server."""
    findings, settings = program.findings, LayeredSettings(*tool_layers(program, "config"))
    config = read_server(program, settings, settings.find("model_path", "model"), library("sglang"))
    record_length(findings, settings.find("context_length"), config, "SGLang's default context_length")
    default = Setting.default(int(usual("sglang", SEQUENCES, {})), "SGLang's cache limits the number of requests")
    findings.record_count("training.micro_batch", settings.find("max_running_requests") or default)
    step, share = settings.find("chunked_prefill_size"), settings.find("mem_fraction_static")
    if step is not None and str(step.value) != "-1":
        findings.record_count("inference.prefill_tokens", step)
    if share is None or is_open(share):  # decided at its start by rules that differ from version to version
        findings.require(SHARE)
    else:
        record_share(findings, SHARE, share, whole=False)
    copies = settings.find("data_parallel_size", "dp_size", "dp")
    if copies is not None and not settings.is_true("enable_dp_attention"):
        findings.record_count("parallel.data_replicate", copies)
    return findings.build()


TOOL = known_tool("sglang", read)
