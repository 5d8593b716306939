"""A tool's configuration file and its command line's overrides, as one flat set of settings by dotted names."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ....common.errors import InputError
from ...program.program import Program
from ...program.run_logs import latest_file, table_in_file, table_in_log
from ...source.data_files import read_table
from ...source.flags import parse_flags
from ...source.settings import LayeredSettings, Setting, SettingsLayer

CONFIG_ENDINGS = (".yaml", ".yml", ".json", ".toml")
_RESOLVED = "config:"
"""What stands before the resolved configuration in axolotl's log."""
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def tool_settings(
    program: Program, *names: str, written: tuple[str, ...] = (), shipped: Path | None = None
) -> LayeredSettings:
    """Overrides on the command line, then the file, by dotted names with underscores.

    Overrides are ``--a.b value``, ``--a.b=value``, ``--a__b value`` and ``a.b=value``.

    Args:
        program: what is read.
        names: the flags that name the file; without one of them it is the first word that ends like a file.
        written: patterns of the file that the running tool writes into its ``output_dir``, all settings resolved.
        shipped: the file that a flag names, where it is one that the tool brings along.
    """
    return LayeredSettings(*tool_layers(program, *names, written=written, shipped=shipped))


def tool_layers(
    program: Program, *names: str, written: tuple[str, ...] = (), shipped: Path | None = None
) -> tuple[SettingsLayer, ...]:
    """The layers of ``tool_settings``: what the running tool wrote, overrides, file."""
    flags, words = parse_flags(overrides_first(program.launch.arguments))
    overrides = {name.replace("__", "."): setting for name, setting in flags.items()}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            overrides[name.replace("-", "_")] = Setting(value=_scalar(value), origin=f"{name}= on the command line")
    path = program.config_file or _file(program, flags, words, names, shipped)
    layers: tuple[SettingsLayer, ...] = (overrides, _file_layer(program, path) if path is not None else {})
    output = LayeredSettings(*layers).find("output_dir")
    if output is None or not written or (found := latest_file(program, str(output.value), *written)) is None:
        return layers
    table = table_in_log(found, _RESOLVED) if found.suffix == ".log" else table_in_file(found)
    return layers if table is None else (flat(table, source=f"{found.name} of the run"), *layers)


def _file_layer(program: Program, path: Path) -> SettingsLayer:
    try:
        return flat(read_table(path), source=path.name)
    except InputError as error:
        if program.config_file is not None:
            raise
        program.findings.warn(f"The program's configuration is not counted: {error.message}")
        return {}


def flat(table: Mapping[str, Any], *, source: str) -> dict[str, Setting]:
    """A nested table's values by dotted names; ``${a.b}`` stands for the value of another name."""
    values = dict(_leaves(table, ""))
    layer = {}
    for name, value in values.items():
        if isinstance(value, str) and (found := _REFERENCE.fullmatch(value.strip())):
            value = values.get(found[1])  # noqa: PLW2901
        if value is not None:
            layer[name.replace("-", "_")] = Setting(value=value, origin=f"{source}: {name}")
    return layer


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def overrides_first(arguments: tuple[str, ...]) -> list[str]:
    """``key=value`` words come before flags, which would else take them for values."""
    overrides = [word for word in arguments if re.match(r"[A-Za-z_][\w.]*=", word)]
    return [*overrides, *(word for word in arguments if word not in overrides)]


def _file(
    program: Program, flags: SettingsLayer, words: list[str], names: tuple[str, ...], shipped: Path | None
) -> Path | None:
    for name in names:
        if name in flags and isinstance(flags[name].value, str):
            return shipped or program.filesystem.resolve(str(flags[name].value))
    found = next((word for word in words if word.endswith(CONFIG_ENDINGS) and "=" not in word), None)
    return program.filesystem.resolve(found) if found else None


def _scalar(text: str) -> Any:
    """``[a,b]`` as a list; anything else as it stands."""
    if text.startswith("[") and text.endswith("]"):
        return [part.strip().strip("'\"") for part in text[1:-1].split(",") if part.strip()]
    return text
