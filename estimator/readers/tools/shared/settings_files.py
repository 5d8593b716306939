"""A tool's configuration file merged with the command line's overrides, by dotted names."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ....common.errors import InputError
from ...program.program import Program
from ...program.run_logs import latest_file, table_in_file, table_in_log
from ...source.data_files import NULL_IS_WRONG, read_table
from ...source.flags import parse_flags
from ...source.settings import LayeredSettings, Setting, SettingsLayer

CONFIG_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
_RESOLVED_CONFIG_MARK = "config:"
"""Text before the resolved configuration in axolotl's log."""
_NULL_IS_A_VALUE = ("bf16",)
"""Settings whose null is not their default: axolotl's precision."""
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
    file = _file_layer(program, path) if path is not None else {}
    unset = LayeredSettings(overrides).is_unset  # a null on the command line takes the file's value away
    layers: tuple[SettingsLayer, ...] = (overrides, {name: each for name, each in file.items() if not unset(name)})
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


def uses_deepspeed(settings: LayeredSettings) -> dict[str, Setting]:
    """Return accelerate's settings with DeepSpeed on, where the trainer's ``deepspeed`` names a configuration."""
    named = settings.find("deepspeed")
    return {} if named is None else {"use_deepspeed": Setting(value=True, origin=named.origin)}
