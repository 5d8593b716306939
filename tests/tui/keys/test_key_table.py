"""Every binding of every screen has an id of the table, or is one of those that every program has."""

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module

import pytest
from textual.binding import Binding, BindingsMap
from textual.dom import DOMNode

from vramtop import tui
from vramtop.tui.keys import KEYS, key_name

_FIXED = {
    *("ctrl+q", "ctrl+c", "super+c", "tab", "shift+tab", "up", "down", "left", "right", "enter", "space"),
    *("pageup", "pagedown", "j", "k", *"123456789"),
}


def classes() -> Iterator[type[DOMNode]]:
    """Every widget, screen and app of vramtop."""
    for module in pkgutil.walk_packages(tui.__path__, "vramtop.tui."):
        if ".cli" in module.name or module.name.endswith("__main__"):
            continue
        for _, kind in inspect.getmembers(import_module(module.name), inspect.isclass):
            if issubclass(kind, DOMNode) and kind.__module__ == module.name:
                yield kind


def own_bindings() -> list[tuple[str, Binding]]:
    return [
        (kind.__name__, binding) for kind in classes() for _, binding in BindingsMap(kind.__dict__.get("BINDINGS", ()))
    ]


def test_every_binding_has_an_id_of_the_table_or_is_a_fixed_key() -> None:
    found = own_bindings()
    assert len(found) > 150
    assert not {(where, binding.key) for where, binding in found if binding.id is None and binding.key not in _FIXED}
    assert not {(where, binding.id) for where, binding in found if binding.id is not None and binding.id not in KEYS}
    assert {binding.id for _, binding in found if binding.id} == set(KEYS)


def test_an_id_has_the_same_default_keys_wherever_it_is_bound() -> None:
    for where, binding in own_bindings():
        if binding.id is not None:
            assert binding.key in KEYS[binding.id].keys.split(","), (where, binding.id)


def test_a_key_does_one_thing_on_a_screen() -> None:
    actions: dict[tuple[str, str], set[str]] = {}
    for where, binding in own_bindings():
        actions.setdefault((where, binding.key), set()).add(binding.id or binding.action)
    assert not {where: found for where, found in actions.items() if len(found) > 1}


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("f5", "F5"),
        ("ctrl+k", "Ctrl+K"),
        ("ctrl+shift+left", "Ctrl+Shift+←"),
        ("question_mark", "?"),
        ("pageup", "PgUp"),
        ("escape", "Esc"),
        ("comma", ","),
        ("ctrl+plus", "Ctrl++"),
        ("K", "K"),
        ("space", "Space"),
    ],
)
def test_a_key_is_shown_as_people_write_it(key: str, shown: str) -> None:
    assert key_name(key) == shown
