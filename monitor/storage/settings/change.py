"""Changes of the settings file: comments and order stay, and it is written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.errors import CannotTellError, InputError, VramtopError
from vramtop.estimator.common.private_files import PRIVATE, make_own_folder, write_private

from ..user_file import in_background, locked, may_change_files
from .schema import Value, find_setting
from .settings_file import NO_FILE, config_file, read_settings_file, read_toml, shown

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


_LOCK_TIMEOUT_SECONDS = 2.0
_PERMISSIONS = 0o777
_HEADING = "# Settings of vramtop; vramtop config lists them all.\n"
Changes = Mapping[str, Value | None]
"""New values by dotted name; None: the setting is removed."""


def change_settings(changes: Changes, environ: Mapping[str, str] = os.environ) -> None:
    """Change settings in the file, under a lock.

    Args:
        changes: values as ``Setting.checked`` returns them.
        environ: names the file.

    Raises:
        InputError: the file is no valid TOML; it is as it was.
        CannotTellError: it cannot be changed.
    """
    named = config_file(environ)
    if not may_change_files():
        return
    if not os.path.isabs(named):  # noqa: PTH117 - no home is known
        raise CannotTellError("Settings cannot be saved: set HOME, XDG_CONFIG_HOME or VRAMTOP_CONFIG.")
    if named == NO_FILE:
        raise CannotTellError(
            f"Settings cannot be saved: vramtop was started without a settings file (VRAMTOP_CONFIG={NO_FILE})."
        )
    folder = Path(named).parent
    try:
        make_own_folder(Path(named))
        with locked(folder / ".config.lock", _LOCK_TIMEOUT_SECONDS):
            _change(Path(os.path.realpath(named)), changes)
    except OSError as error:
        raise CannotTellError(f"{named} cannot be written: {error.strerror or error}.") from None


def save_setting(name: str, value: Value | None, notify: Callable[[str], None]) -> None:
    """Save one setting on a thread of its own, as a disk may hang; without a word if the user wants no file.

    Args:
        name: dotted.
        value: as ``Setting.checked`` returns it; None: it is removed, and its default holds.
        notify: called on that thread with a sentence if it could not be saved.
    """
    if config_file() == NO_FILE:
        return

    def change() -> None:
        try:
            change_settings({name: value})
        except VramtopError as error:
            notify(error.message)

    in_background(change, thread="save settings")


def _change(file: Path, changes: Changes) -> None:
    """Read, change and write the file; whoever calls holds the lock."""
    import tomlkit

    text, before = read_settings_file(str(file))
    if before.is_broken:
        raise InputError(f"{before.problems[0].sentence}, and none can be saved.")
    try:
        document = tomlkit.parse(text or _HEADING)
        for name, value in changes.items():
            _put(document, name, value)
        new = tomlkit.dumps(document)
    except (TypeError, AttributeError):  # a value stands where the table should
        new = text
    expected = {name: value for name, value in before.values.items() if name not in changes}
    expected |= {name: value for name, value in changes.items() if value is not None}
    if dict(read_toml(new, str(file)).values) != expected:
        wanted = [name if value is None else f"{name} = {shown(value)}" for name, value in changes.items()]
        do = "remove from it" if None in changes.values() else "write into it"
        raise CannotTellError(f"{file} cannot be changed without damage; {do} yourself: {', '.join(wanted)}.")
    if new != text:
        mode = stat.S_IMODE(file.stat().st_mode) & _PERMISSIONS if file.exists() else PRIVATE
        write_private(file, new.encode(), mode=mode)


def _put(document: TOMLDocument, name: str, value: Value | None) -> None:
    """Set or remove one value; a table is added where there is none."""
    import tomlkit

    setting = find_setting(name)
    if setting is None:
        raise KeyError(name)
    table: Any = document
    # Below a dotted name (hosts.ssh = ...) a header would swallow the lines that follow it.
    is_inline = any(
        key is not None and key.is_dotted() and key.key == setting.name.partition(".")[0] for key, _ in document.body
    )
    for part in setting.table.split("."):
        is_inline |= isinstance(table, tomlkit.items.InlineTable)
        if part not in table:
            if value is None:
                return
            table[part] = tomlkit.inline_table() if is_inline else tomlkit.table()
        table = table[part]
    key = name.rpartition(".")[2]
    if value is None:
        table.pop(key, None)
    else:
        table[key] = list(value) if isinstance(value, tuple) else value
