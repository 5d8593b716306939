"""Changes of the settings file: comments and order stay, and it is written whole or not at all."""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.errors import CannotTellError, InputError, ProcessLimitError, VramtopError, start_thread
from vramtop.estimator.common.paths import is_file
from vramtop.estimator.common.private_files import PRIVATE, make_own_folder, write_private

from ..user_file import lock_file, may_change_files
from .in_force import (
    NO_FILE,
    TAKEN_OVER,
    config_file,
    old_settings_file,
    read_old_file,
    read_settings_file,
    read_toml,
    shown,
    shown_name,
)
from .schema import SETTINGS, TABLES, Value, find_setting, mapping_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomlkit import TOMLDocument

    from .schema import Setting

# The settings file with every setting commented out: its meaning, what it may be, and its default.


_WIDTH = 78


def settings_template() -> str:
    """Return the text, which is valid TOML and sets nothing."""
    lines = [
        "# Settings of vramtop. What is commented out has the default that stands there.",
        "# A flag takes precedence over the environment, that over this file.",
        "# vramtop config prints what is in force, and from where.",
    ]
    for table, heading in TABLES.items():
        is_mapping = find_setting(table) is not None
        lines += ["", f"[{table}]", *([] if is_mapping else _comment(f"{heading}."))]
        for setting in SETTINGS:
            if setting.table == table:
                lines += [*([] if is_mapping else [""]), *_setting(setting)]
    return "\n".join(lines) + "\n"


def _setting(setting: Setting) -> Iterator[str]:
    yield from _comment(f"{setting.about}.")
    yield from _comment(f"{setting.allowed[0].upper()}{setting.allowed[1:]}.{_instead(setting)}")
    key = setting.name.rpartition(".")[2]
    if isinstance(setting.example, dict):
        yield from (f"# {shown_name(name)} = {shown(value)}" for name, value in setting.example.items())
        return
    if setting.example is not None:
        yield f"#   for example: {key} = {shown(setting.example)}"
    yield default_line(setting)


def default_line(setting: Setting) -> str:
    """Return the line that has a setting's default as a comment."""
    return f"# {setting.name.rpartition('.')[2]} = {shown(setting.default)}"


def _instead(setting: Setting) -> str:
    """Return what takes precedence over it."""
    variables = f"{setting.variable} or {setting.also}" if setting.also else setting.variable
    names = " or ".join(filter(None, (setting.flag.replace(", ", " or "), variables)))
    return f" Instead: {names}." if names else ""


def _comment(text: str) -> list[str]:
    return wrap(
        text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False, break_long_words=False
    )


_LOCK_TIMEOUT_SECONDS = 2.0
_PERMISSIONS = 0o777
_HEADER = re.compile(r"\[([\w.]+)\]")
_COMMENTED = re.compile(r"# (\w+) = ")
_HEADING = "# Settings of vramtop; vramtop config --template prints all of them with their meaning.\n"
Changes = Mapping[str, Value | None]
"""New values by dotted name, also of an entry of a mapping (``keys.sort``); None: the setting is removed."""


def change_settings(changes: Changes, environ: Mapping[str, str] = os.environ) -> None:
    """Change settings in the file, under a lock; the old file of settings is taken over first.

    Args:
        changes: values as ``Setting.checked`` returns them; none only takes the old file over.
        environ: names the file.

    Raises:
        InputError: the file is no valid TOML; it is as it was.
        CannotTellError: it cannot be changed.
    """
    named = config_file(environ)
    if not may_change_files():
        return
    if not os.path.isabs(named):  # noqa: PTH117 - no home is known
        raise CannotTellError("Settings are kept nowhere: set HOME, XDG_CONFIG_HOME or VRAMTOP_CONFIG.")
    if named == NO_FILE:
        raise CannotTellError(f"Settings are kept nowhere: vramtop was told to use no file (VRAMTOP_CONFIG={NO_FILE}).")
    folder = Path(named).parent
    try:
        make_own_folder(Path(named))
        lock = os.open(folder / ".config.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            lock_file(lock, _LOCK_TIMEOUT_SECONDS)
            _change(Path(os.path.realpath(named)), changes, old_settings_file(environ))
        finally:
            os.close(lock)
    except OSError as error:
        raise CannotTellError(f"{named} cannot be written: {error.strerror or error}.") from None


def save_setting(name: str, value: Value | None, notify: Callable[[str], None]) -> None:
    """Save one setting on a thread of its own, as a disk may hang; without a word if the user wants no file.

    Args:
        name: dotted; also of an entry of a mapping.
        value: as ``Setting.checked`` returns it; None: it is removed, and its default holds.
        notify: called on that thread with a sentence if it could not be saved.
    """
    if config_file() != NO_FILE:
        _in_background({name: value}, notify)


def take_over_old_file() -> None:
    """Move the settings of ``settings.json`` into the settings file, if there is one; on a thread of its own.

    Where that cannot be done, both files stay as they are, and both are read.
    """
    old = old_settings_file()
    if old is not None and os.path.isfile(old):  # noqa: PTH113 - pathlib's is slower
        _in_background({}, lambda _: None)


def _in_background(changes: Changes, notify: Callable[[str], None]) -> None:
    def change() -> None:
        try:
            change_settings(changes)
        except VramtopError as error:
            notify(error.message)

    try:
        start_thread(threading.Thread(target=change, name="save settings"))  # no daemon: the program waits at exit
    except ProcessLimitError:
        change()


def _change(file: Path, changes: Changes, old: str | None) -> None:
    """Read, change and write the file; whoever calls holds the lock."""
    text, before = read_settings_file(str(file))
    if before.is_broken:
        raise InputError(f"{before.problems[0].sentence}, and none can be saved.")
    kept = read_old_file(old) if old is not None else None
    taken = {} if kept is None else {name: value for name, value in kept.values.items() if name not in before.values}
    every = {**taken, **changes}
    expected = _expected(before.values, every)
    if dict(before.values) != expected or (None in changes.values()):
        ways = (_uncommented(text, before.values, every), (text, every))
        texts = (_changed(start or _HEADING, left) for start, left in ways)
        new = next((each for each in texts if dict(read_toml(each, str(file)).values) == expected), None)
        if new is None:
            wanted = ", ".join(f"{name} = {shown(value)}" for name, value in changes.items() if value is not None)
            raise CannotTellError(f"{file} cannot be changed without damage; write into it yourself: {wanted}.")
        if new != text:
            mode = stat.S_IMODE(file.stat().st_mode) & _PERMISSIONS if file.exists() else PRIVATE
            write_private(file, new.encode(), mode=mode)
    if kept is not None and old is not None and not kept.is_broken and is_file(Path(old)):
        Path(old).replace(Path(old).with_name(TAKEN_OVER))


def _changed(text: str, changes: Changes) -> str:
    import tomlkit

    document = tomlkit.parse(text)
    for name, value in changes.items():
        _put(document, name, value)
    return tomlkit.dumps(document)


def _uncommented(text: str, present: Mapping[str, Value], changes: Changes) -> tuple[str, Changes]:
    """Set what stands in the text as a comment, as in the template; return the text and the other changes."""
    lines, table, left = text.splitlines(keepends=True), "", dict(changes)
    for at, line in enumerate(lines):
        header, found = _HEADER.match(line), _COMMENTED.match(line)
        table = header[1] if header else table
        name = f"{table}.{found[1]}" if found else ""
        setting, value = find_setting(name), left.get(name)
        if value is None or name in present or setting is None or line.rstrip() != default_line(setting):
            continue
        lines[at] = f"{name.rpartition('.')[2]} = {shown(value)}\n"
        del left[name]
    return "".join(lines), left


def _expected(before: Mapping[str, Value], changes: Changes) -> dict[str, Value]:
    """Return the settings of the file after the changes."""
    after = dict(before)
    for name, value in changes.items():
        mapping = mapping_of(name)
        if mapping is None:
            after.pop(name, None)
            if value is not None and value != {}:
                after[name] = value
            continue
        kept = after.pop(mapping.name, {})
        entries = dict(kept) if isinstance(kept, Mapping) else {}
        key = name[len(mapping.name) + 1 :]
        entries.pop(key, None)
        if isinstance(value, str | tuple):
            entries[key] = value
        if entries:
            after[mapping.name] = entries
    return after


def _put(document: TOMLDocument, name: str, value: Value | None) -> None:
    """Set or remove one value; its table is added where there is none."""
    import tomlkit

    setting = find_setting(name) or mapping_of(name)
    if setting is None:
        raise KeyError(name)
    if setting.kind == "mapping" and setting.name == name:
        entries = value if isinstance(value, Mapping) else {}
        present: Any = document
        for part in setting.table.split("."):
            present = present.get(part, {})
        for key in [*present]:
            if key not in entries:
                _put(document, f"{name}.{key}", None)
        for key, entry in entries.items():
            _put(document, f"{name}.{key}", entry)
        return
    table: Any = document
    for part in setting.table.split("."):
        if part not in table:
            if value is None:
                return
            table[part] = tomlkit.table(is_super_table=f"{part}." in setting.table)
        table = table[part]
    key = name[len(setting.table) + 1 :]
    while key not in table and (group := key.partition("."))[2] and isinstance(table.get(group[0]), Mapping):
        table, key = table[group[0]], group[2]  # fit.pin without quotes
    if value is None:
        table.pop(key, None)
    else:
        table[key] = list(value) if isinstance(value, tuple) else value
