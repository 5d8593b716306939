"""``settings.json`` in the data folder, where vramtop kept its settings before; it is read until it is taken over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vramtop.estimator.common import LimitError, decode_json, read_file

from .schema import COLUMNS, HOST_LINE, QUIET_HOURS, THEME, VIEW, find_setting
from .toml_text import FileSettings, Problem

if TYPE_CHECKING:
    from .setting import Value

TAKEN_OVER = "settings.json.taken-over"
"""Its name once its values are in the settings file."""
_VERSION = 1
_NAMES = {
    "theme": THEME,
    "process_view": VIEW,
    "process_columns": COLUMNS,
    "host_line": HOST_LINE,
    "quiet_hours": QUIET_HOURS,
    "attach": "attach.automatic",
}
"""Names of settings now by their names there, where all values were texts."""


def read_old_file(file: str) -> FileSettings:
    """Return the values of the file under the names of now; nothing if there is no file.

    Values that mean nothing any more are left out without a word: screens wrote them, not the user.
    """
    if not os.path.isabs(file) or not os.path.isfile(file):  # noqa: PTH113, PTH117 - most often there is none
        return FileSettings()
    try:
        document = decode_json(read_file(Path(file)))
    except OSError as error:
        return _unusable(f"{file} cannot be read: {error.strerror or error}")
    except LimitError:
        return _unusable(f"{file} is damaged and is not used; remove it")
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        return _unusable(f"{file} was written by another version of vramtop and is not used")
    content = document.get("content")
    if not isinstance(content, dict):
        return _unusable(f"{file} is damaged and is not used; remove it")
    values: dict[str, Value] = {}
    for old, name in _NAMES.items():
        setting, text = find_setting(name), content.get(old)
        if setting is not None and isinstance(text, str):
            try:
                values[name] = setting.parsed(text)
            except ValueError:
                continue
    return FileSettings(values)


def _unusable(sentence: str) -> FileSettings:
    return FileSettings(problems=(Problem(sentence),), is_broken=True)
