"""The keys that are in force: the user's, otherwise the defaults. There is one set, as there is one app."""

from collections.abc import Mapping

from textual.binding import Binding

from .key_names import key_name
from .table import KEYS

_chosen: dict[str, tuple[str, ...]] = {}
"""The user's keys by id."""


def use_keys(chosen: Mapping[str, tuple[str, ...]]) -> None:
    """Put the user's keys in force, in place of earlier ones; they have been checked."""
    _chosen.clear()
    _chosen.update(chosen)


def keys_in_force(key_id: str) -> tuple[str, ...]:
    """Return Textual's names of the keys of an id."""
    return _chosen.get(key_id) or tuple(KEYS[key_id].keys.split(","))


def shown_key(key_id: str) -> str:
    """Return the key of an id as a sentence names it: ``F2``."""
    return key_name(keys_in_force(key_id)[0])


def bind(
    key_id: str,
    action: str,
    label: str = "",
    *,
    show: bool = True,
    group: str = "",
    help_text: str | None = None,
    priority: bool = False,
    display: str | None = None,
) -> Binding:
    """Return the binding of an id with its default keys; the app replaces them by the user's.

    Args:
        key_id: a row of the table.
        action: what it runs.
        label: text beside the key in the footer.
        show: the footer shows it.
        group: label of several bindings that the footer shows as one: ``←/→ GPU``.
        help_text: its line in the help, if not that of the table; empty: it has none here.
        priority: it comes before the widget with the focus.
        display: how the footer shows the default key.
    """
    row = KEYS[key_id]
    return Binding(
        row.keys,
        action,
        label or group,
        show=show and bool(label or group),
        key_display=display,
        priority=priority,
        tooltip=(row.does if row.in_help else "") if help_text is None else help_text,
        id=key_id,
        group=Binding.Group(group, compact=True) if group else None,
    )
