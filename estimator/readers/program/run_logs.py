"""What a running program has written down of its settings: TensorBoard's event file, wandb's log, tools' own files.

Only files written since the program started count, and where a file names its process, only this one's. They are
read as text: nothing is unpickled, imported or executed.
"""

import ast
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...common.errors import InputError
from ...common.untrusted_files import read_start
from ..source.data_files import read_table
from ..source.settings import LayeredSettings, Setting
from .program import Program

_LIMIT_BYTES = 8 << 20
_DEPTH = 4
_MOST_ENTRIES = 4000
"""A search below a working folder ends after so many: it may hold a data set."""
_FIRST_ARGUMENT = "output_dir"
"""Of TrainingArguments; transformers gives wandb the model's config first, then these (its integration_utils.py)."""
_SLACK_SECONDS = 2.0
"""A file system's clock may be this much behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSettings:
    """Settings that a program wrote down when training began."""

    table: Mapping[str, Any]
    source: str

    def layer(self) -> dict[str, Setting]:
        """By the names they were written under."""
        return {
            name: Setting(value=value, origin=f"{self.source}: {name}")
            for name, value in self.table.items()
            if value is not None
        }


def logged_trainer_settings(program: Program, settings: LayeredSettings) -> dict[str, Setting]:
    """What transformers' Trainer told TensorBoard or wandb of its arguments and of the model; empty before it did."""
    if program.started_at is None:
        return {}
    layer: dict[str, Setting] = {}
    for written in (*_tensorboard(program, settings), *_wandb(program)):
        for name, setting in written.layer().items():
            layer.setdefault(name, setting)
    return layer


def latest_file(program: Program, folder: str, *patterns: str) -> Path | None:
    """The newest of a run's own files in a folder that the program names, written since it started."""
    if program.started_at is None:
        return None
    found = [path for pattern in patterns for path in _since(program, program.filesystem.resolve(folder), pattern)]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _tensorboard(program: Program, settings: LayeredSettings) -> Iterator[LoggedSettings]:
    """The event file's name ends in the process's pid, as the process itself knows it."""
    output = settings.find("logging_dir", "output_dir")
    folder = program.environ.get("TENSORBOARD_LOGGING_DIR") or (str(output.value) if output is not None else None)
    if program.pid is None:
        return
    name = f"events.out.tfevents.*.{program.pid}.*"
    for path in _found_below(program, program.filesystem.resolve(folder) if folder else program.filesystem.cwd, name):
        data = _bytes(path)
        arguments = _json_after(data, b"args/text_summary")
        if arguments is not None:
            yield LoggedSettings(table=arguments, source=f"TensorBoard's {path.name}, args")
        config = _json_after(data, b"model_config/text_summary")
        if config is not None and config.get("model_type"):
            table = {"running_model_config": config, "dtype": config.get("dtype") or config.get("torch_dtype")}
            yield LoggedSettings(table=table, source=f"TensorBoard's {path.name}, model_config")


def _found_below(program: Program, top: Path, name: str) -> list[Path]:
    """A run's files below a folder: ``runs/DATE_HOST`` in its output folder, which the script alone may know.

    The folder is one that the program names: it may be as large as a disk.
    """
    found: list[Path] = []
    folders, seen = [(top, 0)], 0
    while folders and seen < _MOST_ENTRIES:
        folder, depth = folders.pop(0)
        found += _since(program, folder, name)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    seen += 1
                    if depth < _DEPTH and not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                        folders.append((Path(entry.path), depth + 1))
                    if seen >= _MOST_ENTRIES:
                        break
        except OSError:
            continue
    return found


def _json_after(data: bytes, tag: bytes) -> dict[str, Any] | None:
    """The JSON object that follows a tag in the event file."""
    at = data.find(tag)
    begin = data.find(b"{", at) if at >= 0 else -1
    if begin < 0:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(data[begin:].decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):  # not yet written to its end
        return None
    return value if isinstance(value, dict) else None


def _wandb(program: Program) -> Iterator[LoggedSettings]:
    """``config_cb`` lines of wandb's own log, which name the pid: a Python literal with all that was told to it."""
    folder = program.filesystem.resolve(program.environ.get("WANDB_DIR") or ".")
    mark = f":{program.pid} "
    for path in _since(program, folder / "wandb", "*/logs/debug.log"):
        for line in _bytes(path).decode("utf-8", errors="replace").splitlines():
            before, found, literal = line.partition("config_cb None None ")
            if found and (program.pid is None or mark in before):
                table = _literal(literal)
                if table is not None and "per_device_train_batch_size" in table:
                    yield from _told_to_wandb(table)


def _told_to_wandb(table: dict[str, Any]) -> Iterator[LoggedSettings]:
    """The trainer's arguments, the model's config and peft's, which wandb is told as one table."""
    source = "wandb's debug.log"
    yield LoggedSettings(table=table, source=source)
    names = list(table)
    of_model = names[: names.index(_FIRST_ARGUMENT)] if _FIRST_ARGUMENT in names else []
    if "model_type" in of_model:
        config = {name: table[name] for name in of_model if name != "peft_config"}
        yield LoggedSettings(table={"running_model_config": config}, source=source)
    adapters = table.get("peft_config")
    adapter = next(iter(adapters.values()), None) if isinstance(adapters, dict) else None
    if isinstance(adapter, dict) and adapter.get("peft_type") == "LORA":
        lora = {"use_peft": True, "lora_r": adapter.get("r"), "lora_target_modules": adapter.get("target_modules")}
        yield LoggedSettings(table=lora, source=f"{source}: peft_config")


def _literal(text: str) -> dict[str, Any] | None:
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # something in it is no literal
        return None
    return {str(key): inner for key, inner in value.items()} if isinstance(value, dict) else None


def _since(program: Program, folder: Path, pattern: str) -> list[Path]:
    """Files written since the program started, in the order of their names."""
    try:
        paths = sorted(itertools.islice(folder.glob(pattern), _MOST_ENTRIES))
        begun = (program.started_at or 0.0) - _SLACK_SECONDS
        return [path for path in paths if path.stat().st_mtime >= begun]
    except OSError:
        return []


def _bytes(path: Path) -> bytes:
    try:
        return read_start(path, _LIMIT_BYTES)
    except OSError:
        return b""


def table_in_log(path: Path, mark: str) -> dict[str, Any] | None:
    """The JSON object that follows a mark in a log; None where there is none yet."""
    return _json_after(_bytes(path), mark.encode())


def table_in_file(path: Path) -> dict[str, Any] | None:
    """The table in a file that the run wrote; None where it is not whole yet."""
    try:
        return read_table(path) if os.access(path, os.R_OK) else None
    except InputError:
        return None
