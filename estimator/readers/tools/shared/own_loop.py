"""The ranks and options of tools with a training loop of their own."""

import os
from collections.abc import Mapping
from typing import Any

from ....job.rules.optimizers.by_name import optimizer_arguments, optimizer_by_class
from ....job.settled import served_precision
from ....model.checkpoint import WEIGHT_FORMATS, stored_dtype
from ...arguments.table import Library, doubt_arguments, record_arguments, record_word
from ...program.program import Program
from ...program.world_size import WorldSize, read_world_size
from ...source.evidence import Finding, FindingCollector
from ...source.filesystem_view import FilesystemView
from ...source.settings import LayeredSettings, Setting, as_float, as_int, as_word, is_open
from ...trainer.sharding import record_dimensions
from ...trainer.trained_model import given_config, known_config


def read_server(
    program: Program, settings: LayeredSettings, named: Setting | None, table: Library
) -> Mapping[str, Any]:
    """Record the model of an inference server and its dtypes, and return the model's config.

    Args:
        program: the server.
        settings: its settings.
        named: the setting that names the model.
        table: its arguments.
    """
    findings, running = program.findings, f"the program is {table.title}"
    if named is not None:
        findings.record_from(named, "model.id", folder_id(program.filesystem, named) or str(named.value))
    findings.infer("training.mode", "inference", running)
    findings.infer("inference.engine", table.title.lower(), running)
    config = known_config(findings.get("model.id"), program.environ) or {}
    dtype, quantization = settings.find("dtype"), settings.find("quantization")
    stored = config.get("quantization_config")
    if dtype is not None and as_word(dtype) != "auto":
        record_arguments(table, "weights", settings, findings)
    else:
        origin = f"{table.title} computes in the model's stored dtype"
        findings.infer("training.precision", served_precision(stored_dtype(config)), origin)
    for group in ("cache", "parallel"):
        record_arguments(table, group, settings, findings)
    doubt_arguments(table, "all", settings, findings)
    if quantization is not None:
        record_word(findings, "inference.weights", quantization, WEIGHT_FORMATS)
    elif isinstance(stored, Mapping):
        _read_stored_quantization(stored, findings)
    return config


def _read_stored_quantization(quantization: Mapping[str, Any], findings: FindingCollector) -> None:
    """Record the format of the checkpoint's weights, from the model's config."""
    method, bits = str(quantization.get("quant_method") or ""), quantization.get("bits")
    origin = "the model's quantization_config"
    if bits == 8 or method == "compressed-tensors":
        findings.warn(f"{origin} ({method or bits}) is counted as 8 bits per weight.")
        findings.infer("inference.weights", "int8", origin)
    elif method in WEIGHT_FORMATS:
        findings.infer("inference.weights", WEIGHT_FORMATS[method], origin)
    elif method:
        findings.warn(f"{origin}: {method} is not supported; 16 bits per weight are assumed.")


def record_length(findings: FindingCollector, setting: Setting | None, config: Mapping[str, Any], default: str) -> None:
    """Record a server's longest sequence, by default the model's; ``default`` names the server's argument."""
    if setting is not None:
        findings.record_count("training.sequence_length", setting)
    elif isinstance(longest := config.get("max_position_embeddings"), int):
        origin = f"the model's max_position_embeddings: {default}"
        findings.infer("training.sequence_length", longest, origin)


def record_share(findings: FindingCollector, key: str, setting: Setting, *, whole: bool) -> None:
    """Record a share of the GPU's memory; refuse any other value.

    Args:
        findings: receives the value.
        key: the job's key.
        setting: as it was found.
        whole: the share may be 1.
    """
    number = as_float(setting) or 0.0
    if 0 < number < 1 or (whole and number == 1):
        findings.record_from(setting, key, number)
    else:
        findings.refuse(key, setting, f"share of the GPU's memory (above 0, {'at most' if whole else 'below'} 1)")


def record_optimizer(
    program: Program, settings: LayeredSettings, named: Setting | None, *prefixes: str, **options: Any
) -> None:
    """Record the optimizer class that a tool's setting names, with the keyword arguments on which memory depends.

    Args:
        program: of the tool.
        settings: its settings, among them the arguments, named ``PREFIX argument``.
        named: the setting that names the class; None: there is none.
        prefixes: what the arguments' names begin with.
        options: arguments that the tool gives itself.
    """
    found = {name: settings.find(*(prefix + name for prefix in prefixes)) for name in optimizer_arguments()}
    given = {name: setting.value for name, setting in found.items() if setting is not None}
    if named is not None:
        program.findings.record_optimizer(named, optimizer_by_class(str(named.value), given | options))


def bits_of_weights(
    findings: FindingCollector, bits: Setting, method: Setting | None, double: Setting | None, tool: str
) -> dict[str, Setting]:
    """Return bitsandbytes' quantization under transformers' names: in 4 bits, with quantized scales by default.

    Args:
        findings: collects a doubt about other libraries and other bits.
        bits: 8, or any other value for 4.
        method: the library that quantizes; None: bitsandbytes.
        double: whether the scales are quantized too; None: the tool's default, which is true.
        tool: whose default it is.
    """
    if (method is not None and as_word(method) not in ("bnb", "bitsandbytes")) or as_int(bits) not in (4, 8):
        origin = "; ".join(dict.fromkeys(each.origin for each in (method, bits) if each is not None))
        sentence = (
            f"{origin}: these weights are counted as bitsandbytes stores them, in {8 if as_int(bits) == 8 else 4} bits."
        )
        findings.mark_uncertain("lora.quantization", sentence)
    if as_int(bits) == 8:
        return {"load_in_8bit": bits.with_value(True)}
    double = double or Setting.default(True, f"{tool}'s default double quantization")
    return {"load_in_4bit": bits.with_value(True), "bnb_4bit_use_double_quant": double}


def world_of_tool(program: Program) -> WorldSize:
    """Return the ranks of a launch line; none for a configuration file alone, which does not say how many there are."""
    if program.config_file is not None:
        return WorldSize(ranks=None)
    return read_world_size(program.launcher, LayeredSettings(), program.environ, findings=program.findings)


def record_ranks(
    program: Program, world: WorldSize, settings: LayeredSettings, table: Library, shard: Setting | None
) -> int:
    """Record the size of every dimension; data shards get the remaining ranks, unless their number is written.

    Return how many ranks process the same data.

    Args:
        program: of the tool.
        world: the number of ranks.
        settings: the tool's.
        table: the tool's, which names the settings of the dimensions (``ranks``); all but ``expert`` divide the ranks.
        shard: the written number of shards; None, or -1: the remaining ranks.
    """
    findings = program.findings
    found = {name: settings.find(argument) for name, argument in table.words["ranks"].items()}
    divisor = record_dimensions(found, findings)
    ranks, total = world.ranks, as_int(world.ranks)
    if shard is not None and not is_open(shard):
        findings.record_count("parallel.data_shard", shard)
    elif ranks is None or total is None:
        findings.require("parallel.data_shard")
    elif total % divisor:
        findings.warn(f"{total} ranks cannot be divided among {divisor} tensor, context, pipeline and replica ranks.")
        findings.require("parallel.data_shard")
    else:
        findings.record_from(ranks, "parallel.data_shard", total // divisor)
    return divisor


def folder_id(filesystem: FilesystemView, named: Setting | None) -> str | None:
    """Return the full path of a checkpoint's folder that a setting names, if it holds a config.json."""
    folder = filesystem.resolve(str(named.value)) if named is not None else None
    return str(folder) if folder is not None and os.access(folder / "config.json", os.F_OK) else None


def config_of_model(program: Program, model: Setting | None) -> Mapping[str, Any] | None:
    """Return the config of a model that a setting names, by id or by folder; None if it is not known here.

    Where the user gives another model, that one's.
    """
    if program.findings.replaces_model:
        return given_config(program.findings, program.environ)
    if model is None:
        return None
    name = folder_id(program.filesystem, model) or str(model.value)
    finding = Finding(key="model.id", value=name, origin=model.origin, written=model.written)
    return known_config(finding, program.environ, folders=program.pid is None)
