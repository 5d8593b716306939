"""Building blocks that several tools use."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from ...common.errors import InputError
from ...job.rules.optimizers.by_name import optimizer_arguments, optimizer_by_class
from ...job.settled import served_precision
from ...model.checkpoint import WEIGHT_FORMATS, stored_dtype
from ..arguments.table import Library, doubt_arguments, library, read_file, record_arguments, record_word
from ..program.program import Program, ToolCommand, WorldSize, read_world_size
from ..program.run_logs import latest_file, table_in_file, table_in_log
from ..source.data_files import NULL_IS_WRONG, FilesystemView, read_table
from ..source.evidence import Finding, FindingCollector, JobReading
from ..source.flags import parse_flags
from ..source.settings import LayeredSettings, Setting, SettingsLayer, as_bool, as_float, as_int, as_word, is_open
from ..trainer.trainer_program import given_config, known_config

# The record that describes a training tool: how it is recognised, read and edited.


ConfigTable = Mapping[str, Any]


class ToolNames(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a training tool is recognised: a row of ``tools.toml``."""

    name: str
    """The name for people."""
    programs: str
    """Its programs, as a regular expression: names of modules, and paths of scripts without ``.py``."""
    commands: tuple[ToolCommand, ...] = ()
    """Its own commands on the PATH."""
    flags: frozenset[str] = frozenset()
    """Flags that only its programs take, all of them together, for programs of other names."""
    entries: Mapping[str, str] = {}
    """Functions that a script of another name starts it with, as patterns of dotted names, and the equal command."""
    scripts: Mapping[str, str] = {}
    """Scripts that its repository has, as patterns of paths, and the equal command, for those that are not here."""
    keys: tuple[tuple[str, ...], ...] = ()
    """Dotted settings; a configuration file that has all of one row is the tool's."""


class Tool(ToolNames, frozen=True, kw_only=True):
    """A training tool that is read by its own names."""

    read: Callable[[Program], JobReading]
    """Read a program, or a configuration file alone, into a job."""
    table: Callable[[], Library]
    """What its arguments mean, read when it is called."""
    is_own: Callable[[ConfigTable], bool] | None = None
    """Return True for the table of one of its configuration files; None: ``keys`` tell."""

    def is_config(self, table: ConfigTable) -> bool:
        """Return True for the table of one of its configuration files."""
        return has_paths(table, self.keys) if self.is_own is None else self.is_own(table)


def known_tool(
    module: str, read: Callable[[Program], JobReading], is_own: Callable[[ConfigTable], bool] | None = None
) -> Tool:
    """Return a tool by the name of its module, which its row of ``tools.toml`` and its file of arguments have too."""
    row = msgspec.structs.asdict(_rows()[module])
    return Tool(**row, read=read, is_own=is_own, table=partial(library, module))


@cache
def _rows() -> dict[str, ToolNames]:
    return read_file("tools", dict[str, ToolNames])


def has_paths(table: ConfigTable, rows: Sequence[Sequence[str]]) -> bool:
    """Return True if a table has all dotted settings of one of several rows."""
    return any(all(_has_path(table, key) for key in keys) for keys in rows)


def _has_path(table: Any, key: str) -> bool:
    """Return True if a table has a dotted setting."""
    for name in key.split("."):
        if not isinstance(table, Mapping) or name not in table:
            return False
        table = table[name]
    return True


def has_key(table: ConfigTable, key: str) -> bool:
    """Return True if a table or one nested inside it has a key."""
    return key in table or any(has_key(value, key) for value in table.values() if isinstance(value, Mapping))


def has_any(table: ConfigTable, *keys: str) -> bool:
    """Return True if a table has one of these keys."""
    return not table.keys().isdisjoint(keys)


# A tool's configuration file merged with the command line's overrides, by dotted names.


CONFIG_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
_RESOLVED_CONFIG_MARK = "config:"
"""Text before the resolved configuration in axolotl's log."""
_NULL_IS_A_VALUE = ("bf16", "nvfsdp_unit_modules", "megatron_fsdp_unit_modules")
"""Settings whose null is not their default: axolotl's precision, Automodel's units."""
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=")


def tool_settings(
    program: Program, *names: str, written: tuple[str, ...] = (), shipped: Path | None = None
) -> LayeredSettings:
    """Return overrides on the command line, then the file, by dotted names with underscores.

    Overrides are ``--a.b value``, ``--a.b=value``, ``--a__b value`` and ``a.b=value``.

    Args:
        program: the program.
        names: the flags that name the file; without one of them it is the first word with a configuration's suffix.
        written: patterns of the file that the running tool writes into its ``output_dir``, all settings resolved.
        shipped: the file that a flag names, where it is one that the tool ships.
    """
    return LayeredSettings(*tool_layers(program, *names, written=written, shipped=shipped))


def tool_layers(
    program: Program, *names: str, written: tuple[str, ...] = (), shipped: Path | None = None
) -> tuple[SettingsLayer, ...]:
    """Return the layers of ``tool_settings``: the file that the running tool wrote, overrides, the configuration."""
    flags, words = parse_flags(overrides_first(program.launch.arguments))
    overrides = {name.replace("__", "."): setting for name, setting in flags.items()}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            origin = f"{name}= on the command line"
            overrides[name.replace("-", "_")] = Setting(value=_parse_value(value), origin=origin)
    path = program.config_file or _named_file(program, flags, words, names, shipped)
    layers: tuple[SettingsLayer, ...] = (overrides, _file_layer(program, path) if path is not None else {})
    output = LayeredSettings(*layers).find("output_dir")
    if output is None or not written or (found := latest_file(program, str(output.value), *written)) is None:
        return layers
    table = table_in_log(found, _RESOLVED_CONFIG_MARK) if found.suffix == ".log" else table_in_file(found)
    return layers if table is None else (_flat_layer(table, source=f"{found.name} of the run"), *layers)


def overrides_first(arguments: tuple[str, ...]) -> list[str]:
    """Return the arguments with ``key=value`` words before flags, which would otherwise take them for values."""
    overrides = [word for word in arguments if _OVERRIDE.match(word)]
    return [*overrides, *(word for word in arguments if word not in overrides)]


def _named_file(
    program: Program, flags: SettingsLayer, words: list[str], names: tuple[str, ...], shipped: Path | None
) -> Path | None:
    for name in names:
        if name in flags and isinstance(flags[name].value, str):
            return shipped or program.filesystem.resolve(str(flags[name].value))
    found = next((word for word in words if word.endswith(CONFIG_SUFFIXES) and "=" not in word), None)
    return program.filesystem.resolve(found) if found else None


def _file_layer(program: Program, path: Path) -> SettingsLayer:
    try:
        return _flat_layer(read_table(path), source=path.name)
    except InputError as error:
        if program.config_file is not None:
            raise
        program.findings.warn(f"Could not read the program's configuration: {error.message}")
        return {}


def _flat_layer(table: Mapping[str, Any], *, source: str) -> dict[str, Setting]:
    """Return a nested table's values by dotted names; ``${a.b}`` stands for the value of another name."""
    values = dict(_leaves(table, ""))
    layer = {}
    for name, value in values.items():
        reference = _REFERENCE.fullmatch(value.strip()) if isinstance(value, str) else None
        resolved = values.get(reference[1]) if reference else value
        if resolved is not None or name.rpartition(".")[2] in (*NULL_IS_WRONG, *_NULL_IS_A_VALUE):
            layer[name.replace("-", "_")] = Setting(value=resolved, origin=f"{source}: {name}")
    return layer


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _parse_value(text: str) -> Any:
    """Return ``[a,b]`` as a list, and any other text unchanged."""
    if text.startswith("[") and text.endswith("]"):
        return [part.strip().strip("'\"") for part in text[1:-1].split(",") if part.strip()]
    return text


# The ranks and options of tools with a training loop of their own.


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
        findings.record_from(named, "model.id", folder_id(program.filesystem, str(named.value)) or str(named.value))
    findings.infer("training.mode", "inference", running)
    findings.infer("inference.engine", table.title.lower(), running)
    config = known_config(findings.get("model.id"), program.environ) or {}
    dtype, quantization, stored = (
        settings.find("dtype"),
        settings.find("quantization"),
        config.get("quantization_config"),
    )
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
) -> None:
    """Record the size of every dimension; data shards get the remaining ranks, unless their number is written.

    Args:
        program: of the tool.
        world: the number of ranks.
        settings: the tool's.
        table: the tool's, which names the settings of the dimensions (``ranks``); all but ``expert`` divide the ranks.
        shard: the written number of shards; None, or -1: the remaining ranks.
    """
    findings = program.findings
    divisor = 1
    for name, argument in table.words["ranks"].items():
        setting = settings.find(argument)
        size = as_int(setting)
        if setting is not None and size is None and not is_open(setting):
            findings.refuse(f"parallel.{name}", setting)
        if setting is None or size is None or size == 1:
            continue
        findings.record_from(setting, f"parallel.{name}", size)
        if name != "expert":
            divisor *= size
    if shard is not None and not is_open(shard):
        findings.record_count("parallel.data_shard", shard)
        return
    ranks, total = world.ranks, as_int(world.ranks)
    if ranks is None or total is None:
        findings.require("parallel.data_shard")
    elif total % divisor:
        findings.warn(f"{total} ranks cannot be divided among {divisor} tensor, context, pipeline and replica ranks.")
        findings.require("parallel.data_shard")
    else:
        findings.record_from(ranks, "parallel.data_shard", total // divisor)


def folder_id(filesystem: FilesystemView, text: str) -> str | None:
    """Return a checkpoint folder's full path, if it holds a config.json."""
    folder = filesystem.resolve(text)
    return str(folder) if os.access(folder / "config.json", os.F_OK) else None


def config_of_model(program: Program, model: Setting | None) -> Mapping[str, Any] | None:
    """Return the config of a model that a setting names, by id or by folder; None if it is not known here.

    Where the user gives another model, that one's.
    """
    if program.findings.replaces_model:
        return given_config(program.findings, program.environ)
    if model is None:
        return None
    name = folder_id(program.filesystem, str(model.value)) or str(model.value)
    finding = Finding(key="model.id", value=name, origin=model.origin, written=model.written)
    return known_config(finding, program.environ, folders=program.pid is None)


# Parameters that a tool freezes or trains by their names, as the globs of ``training.trainable``.


VISION_TOWER = ("vision_tower", "vision_model", "vision_encoder", "visual.patch_embed", "visual.blocks", "audio_tower")
"""Parts of names of encoders for pictures and sound, in transformers' models."""
PROJECTOR = ("multi_modal_projector", "mm_projector", "visual.merger", "aligner", "embed_vision", "embed_audio")
"""Parts of names of the layers between an encoder and the language model."""
LANGUAGE_MODEL = ("language_model", "lm_head")
"""Parts of names of the language model with its head."""


def frozen_parts(settings: LayeredSettings, config: Mapping[str, Any] | None, *, switches: Sequence[str]) -> list[str]:
    """Return globs of the parts of a model with a vision tower that do not train, by default tower and projector.

    Args:
        settings: the tool's.
        config: the model's; None: not known.
        switches: the settings that freeze the tower, the projector, and the language model.
    """
    if config is None or "vision_config" not in config:
        return []
    found: list[str] = []
    for name, parts in zip(switches, (VISION_TOWER, PROJECTOR, LANGUAGE_MODEL), strict=True):
        written = as_bool(settings.find(name))
        if parts is not LANGUAGE_MODEL if written is None else written:
            found += [f"*{part}*" for part in parts]
    return found


_MAX_GLOBS = 128
_MAX_CHARACTERS = 500
_GROUP = re.compile(r"\((?:\?:)?([^()]*)\)(?![+*?{])")
_TOKEN = re.compile(r"(\\[.dw_\-]|\[[^\[\]\\]+\]|[.A-Za-z0-9_:\-])([+*]?)")
_GLOBS = {"\\d": "[0-9]", "\\w": "?", "\\.": ".", "\\_": "_", "\\-": "-"}


def globs_of_regex(text: str, *, from_start: bool, dots_are_literal: bool = False) -> list[str] | None:
    """Return globs of whole names that match where a regular expression does; None if no few globs do.

    What follows a repeated class may be any text. Groups may not be repeated.

    Args:
        text: the regular expression; it is never run, as one that never ends would never end.
        from_start: it is matched from the beginning of a name (``re.match``), not anywhere (``re.search``).
        dots_are_literal: a dot stands for itself, unless ``+`` follows.
    """
    texts = [text]
    while len(texts) <= _MAX_GLOBS and len(text) <= _MAX_CHARACTERS and (group := _GROUP.search(texts[0])):
        alternatives = group[1].split("|")
        texts = [each.replace(group[0], word, 1) for word in alternatives for each in texts]
    globs = [_glob(part, from_start, dots_are_literal) for each in texts for part in each.split("|")]
    found = [glob for glob in globs if glob is not None]
    is_plain = len(found) == len(globs) <= _MAX_GLOBS and len(text) <= _MAX_CHARACTERS
    return list(dict.fromkeys(found)) if is_plain else None


def _glob(text: str, from_start: bool, literal: bool) -> str | None:
    """Return the glob of an expression without groups."""
    inner, glob = text.removeprefix("^").removesuffix("$"), ""
    tokens = _TOKEN.findall(inner)
    if "".join(word + quantifier for word, quantifier in tokens) != inner or (literal and "\\." in text):
        return None
    for word, quantifier in tokens:
        dot = "." if literal and quantifier != "+" else "?"
        one = dot if word == "." else _GLOBS.get(word, word.replace("[^", "[!", 1))
        glob += "*" if quantifier == "*" else f"{one}*" if quantifier else one
    begins, ends = "" if from_start or text.startswith("^") else "*", "" if text.endswith("$") else "*"
    return re.sub(r"\*+", "*", f"{begins}{glob}{ends}")


def uses_deepspeed(settings: LayeredSettings) -> dict[str, Setting]:
    """Return accelerate's settings with DeepSpeed on, where the trainer's ``deepspeed`` names a configuration."""
    named = settings.find("deepspeed")
    return {} if named is None else {"use_deepspeed": Setting(value=True, origin=named.origin)}
