"""Every screen and dialog with all bindings that work on it: for the check of the user's keys, and the reference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

from textual.binding import Binding

from ..keys import (
    APP_KEYS,
    CHOICE_KEYS,
    FIELD_KEYS,
    FIXED_KEYS,
    FLEET_APP_KEYS,
    KEYS,
    TERMINAL_KEYS,
    FixedKey,
    KeyPlace,
    UsedKey,
    key_name,
    keys_in_force,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from textual.binding import BindingType

_BOARD_APP = (APP_KEYS, TERMINAL_KEYS)
_FLEET_APP = (FLEET_APP_KEYS, TERMINAL_KEYS)
_FORM = (FIELD_KEYS, CHOICE_KEYS)
_Source = str | list["BindingType"] | FixedKey
"""``module:list`` of bindings, imported only for the check; or what is there already."""
_PLACES: dict[str, tuple[_Source, ...]] = {
    "dashboard": (
        "dashboard.process_table:TABLE_KEYS",
        "dashboard.gpus:GPU_ROW_KEYS",
        "dashboard.screen:DASHBOARD_KEYS",
        *_BOARD_APP,
    ),
    "columns": ("dashboard.process_table:COLUMN_KEYS",),
    "signal": ("dashboard.signals:SIGNAL_KEYS", FIELD_KEYS),
    "GPU": ("dashboard.process_table:TABLE_KEYS", "gpu:GPU_SCREEN_KEYS", *_BOARD_APP),
    "process": ("process:PROCESS_INFO_KEYS", *_BOARD_APP),
    "alerts": ("alerts:ALERT_KEYS", *_BOARD_APP),
    "alerts of a fleet": ("alerts:ALERT_KEYS", *_FLEET_APP),
    "settings": ("settings:SETTING_LIST_KEYS", "settings:SETTINGS_KEYS", *_BOARD_APP),
    "settings of a fleet": ("settings:SETTING_LIST_KEYS", "settings:SETTINGS_KEYS", *_FLEET_APP),
    "preflight": ("preflight:PREFLIGHT_KEYS", *_BOARD_APP),
    "out of memory": ("crash:CRASH_KEYS", *_BOARD_APP),
    "step": ("step:STEP_KEYS", *_BOARD_APP),
    "fit check": (*_FORM, "fit.verdict_pane:SUGGESTION_KEYS", "fit.screen:FIT_KEYS", *_BOARD_APP),
    "what-if": ("what_if:WHAT_IF_KEYS", *_BOARD_APP),
    "attach": (*_FORM, "attach.screen:ATTACH_KEYS", *_BOARD_APP),
    "fleet": ("fleet.screen:FLEET_TABLE_KEYS", "fleet.screen:FLEET_KEYS", *_FLEET_APP),
    "host or run of a fleet": ("fleet.screen:DETAIL_KEYS", *_FLEET_APP),
    "fit over a fleet": ("fleet.job_fit:HOST_LIST_KEYS", "fleet.job_fit:FLEET_FIT_KEYS", *_FLEET_APP),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """A key of the reference."""

    key_id: str | None
    """Its name in the settings file; None: it is fixed."""
    default: str
    """The default keys as screens show them: ``F2, p``."""
    in_force: str
    """The keys that are in force, in the same way."""
    where: tuple[str, ...]
    """The screens and dialogs on which it works."""
    does: str
    """What it does, in a few words."""


@cache
def key_places() -> tuple[KeyPlace, ...]:
    """Return the screens and dialogs with their default keys; only modules of keys are imported."""
    return tuple(KeyPlace(title, tuple(_used(sources))) for title, sources in _PLACES.items())


def all_keys() -> list[KeyRow]:
    """Return every key: those that can be chosen by id, then the fixed ones."""
    rows = []
    for key_id, key in KEYS.items():
        where = tuple(place.title for place in key_places() if any(used.key_id == key_id for used in place.used))
        names = [_names(keys) for keys in (key.keys.split(","), keys_in_force(key_id))]
        everywhere = key_id.startswith("app.") and key_id != "app.back"
        rows.append(
            KeyRow(
                key_id=key_id,
                default=names[0],
                in_force=names[1],
                where=("every screen",) if everywhere else where,
                does=key.does,
            )
        )
    rows += [
        KeyRow(key_id=None, default=fixed.keys, in_force=fixed.keys, where=(fixed.where,), does=fixed.does)
        for fixed in FIXED_KEYS
    ]
    return rows


def _names(keys: Sequence[str]) -> str:
    return ", ".join(key_name(key) if key != "comma" else ", (comma)" for key in keys)


def _used(sources: Sequence[_Source]) -> Iterator[UsedKey]:
    for owner, source in enumerate(sources):
        if isinstance(source, FixedKey):
            yield UsedKey(None, source.names, source.does, owner)
            continue
        for binding in _load(source) if isinstance(source, str) else source:
            if isinstance(binding, Binding):
                yield UsedKey(binding.id, tuple(binding.key.split(",")), binding.action, owner)


def _load(path: str) -> Sequence[BindingType]:
    module, _, name = path.partition(":")
    return cast("Sequence[BindingType]", getattr(import_module(f".{module}", __package__), name))
