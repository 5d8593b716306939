"""Settings that a running program has written down: TensorBoard's event file, wandb's log, tools' own files.

Only files written since the program started count, and where a file names its process, only this program's. They are
read as text: nothing is unpickled, imported or executed.
"""

import ast
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...common.errors import InputError
from ...common.untrusted_files import read_start
from ..source.data_files import read_table
from ..source.settings import LayeredSettings, Setting
from .program import Program

_MAX_FILE_BYTES = 8 << 20
_MAX_SEARCH_DEPTH = 4
_MAX_ENTRIES = 4000
"""Directory entries searched below a working folder, which may hold a data set."""
_FIRST_TRAINING_ARGUMENT = "output_dir"
"""transformers gives wandb the model's config first, then TrainingArguments (its ``integration_utils.py``)."""
_CLOCK_SLACK_SECONDS = 2.0
"""A file system's clock may be this far behind."""
_Logged = tuple[Mapping[str, Any], str]
"""Settings that a program wrote down when training began, by their names there, and the place."""


def logged_trainer_settings(program: Program, settings: LayeredSettings) -> dict[str, Setting]:
    """Return the arguments and the model that transformers' Trainer wrote to TensorBoard or wandb, if it has."""
    if program.started_at is None:
        return {}
    layer: dict[str, Setting] = {}
    for table, source in (*_tensorboard(program, settings), *_wandb(program)):
        for name, value in table.items():
            if value is not None:
                layer.setdefault(name, Setting(value=value, origin=f"{source}: {name}"))
    return layer


def latest_file(program: Program, folder: str, *patterns: str) -> Path | None:
    """Return the latest of a run's own files in a folder that the program names, written since it started."""
    if program.started_at is None:
        return None
    folder_path = program.filesystem.resolve(folder)
    found = [path for pattern in patterns for path in _written_since_start(program, folder_path, pattern)]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def table_in_log(path: Path, mark: str) -> dict[str, Any] | None:
    """Return the JSON object that follows a mark in a log; None if there is none yet."""
    return _json_after(_read_start(path), mark.encode())


def table_in_file(path: Path) -> dict[str, Any] | None:
    """Return the table in a file that the run wrote; None if the file is not complete yet."""
    try:
        return read_table(path) if os.access(path, os.R_OK) else None
    except InputError:
        return None


def _tensorboard(program: Program, settings: LayeredSettings) -> Iterator[_Logged]:
    """Read the event file, whose name contains the pid that the process has in its own namespace."""
    output = settings.find("logging_dir", "output_dir")
    folder = program.environ.get("TENSORBOARD_LOGGING_DIR") or (str(output.value) if output is not None else None)
    if program.pid is None:
        return
    name = f"events.out.tfevents.*.{program.pid}.*"
    top = program.filesystem.resolve(folder) if folder else program.filesystem.cwd
    for path in _find_below(program, top, name):
        data = _read_start(path)
        arguments = _json_after(data, b"args/text_summary")
        if arguments is not None:
            yield arguments, f"TensorBoard's {path.name}, args"
        config = _json_after(data, b"model_config/text_summary")
        if config is not None and config.get("model_type"):
            table = {"running_model_config": config, "dtype": config.get("dtype") or config.get("torch_dtype")}
            yield table, f"TensorBoard's {path.name}, model_config"


def _wandb(program: Program) -> Iterator[_Logged]:
    """Read the ``config_cb`` lines of wandb's log: the pid, then all settings as a Python literal."""
    folder = program.filesystem.resolve(program.environ.get("WANDB_DIR") or ".")
    mark = f":{program.pid} "
    for path in _written_since_start(program, folder / "wandb", "*/logs/debug.log"):
        for line in _read_start(path).decode("utf-8", errors="replace").splitlines():
            before, found, literal = line.partition("config_cb None None ")
            if found and (program.pid is None or mark in before):
                table = _parse_literal(literal)
                if table is not None and "per_device_train_batch_size" in table:
                    yield from _split_wandb_config(table)


def _split_wandb_config(table: dict[str, Any]) -> Iterator[_Logged]:
    """Yield the trainer's arguments, the model's config and peft's, which wandb has in one table."""
    source = "wandb's debug.log"
    yield table, source
    names = list(table)
    of_model = names[: names.index(_FIRST_TRAINING_ARGUMENT)] if _FIRST_TRAINING_ARGUMENT in names else []
    if "model_type" in of_model:
        config = {name: table[name] for name in of_model if name != "peft_config"}
        yield {"running_model_config": config}, source
    adapters = table.get("peft_config")
    adapter = next(iter(adapters.values()), None) if isinstance(adapters, dict) else None
    if isinstance(adapter, dict) and adapter.get("peft_type") == "LORA":
        lora = {"use_peft": True, "lora_r": adapter.get("r"), "lora_target_modules": adapter.get("target_modules")}
        yield lora, f"{source}: peft_config"


def _find_below(program: Program, top: Path, name: str) -> list[Path]:
    """Return a run's files below a folder: TensorBoard's are in ``runs/DATE_HOST`` of the output folder.

    The program names the folder, which may be as large as a disk, so depth and entries are limited.
    """
    found: list[Path] = []
    folders, entries_seen = [(top, 0)], 0
    while folders and entries_seen < _MAX_ENTRIES:
        folder, depth = folders.pop(0)
        found += _written_since_start(program, folder, name)
        try:
            with os.scandir(folder) as entries:
                for entry in itertools.islice(entries, _MAX_ENTRIES - entries_seen):
                    entries_seen += 1
                    is_visible = depth < _MAX_SEARCH_DEPTH and not entry.name.startswith(".")
                    if is_visible and entry.is_dir(follow_symlinks=False):
                        folders.append((Path(entry.path), depth + 1))
        except OSError:
            continue
    return found


def _written_since_start(program: Program, folder: Path, pattern: str) -> list[Path]:
    """Return the files written since the program started, in the order of their names."""
    try:
        paths = sorted(itertools.islice(folder.glob(pattern), _MAX_ENTRIES))
        earliest = (program.started_at or 0.0) - _CLOCK_SLACK_SECONDS
        return [path for path in paths if path.stat().st_mtime >= earliest]
    except OSError:
        return []


def _json_after(data: bytes, tag: bytes) -> dict[str, Any] | None:
    """Return the JSON object that follows a tag."""
    tag_position = data.find(tag)
    start = data.find(b"{", tag_position) if tag_position >= 0 else -1
    if start < 0:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(data[start:].decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):  # not completely written yet
        return None
    return value if isinstance(value, dict) else None


def _parse_literal(text: str) -> dict[str, Any] | None:
    """Return a dict from its Python literal; None if something in it is no literal."""
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return {str(key): inner for key, inner in value.items()} if isinstance(value, dict) else None


def _read_start(path: Path) -> bytes:
    try:
        return read_start(path, _MAX_FILE_BYTES)
    except OSError:
        return b""
