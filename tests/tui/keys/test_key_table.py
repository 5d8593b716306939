"""Every binding of every screen has an id of the table, or is one of the fixed keys; its place knows it."""

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from textual.binding import Binding, BindingsMap
from textual.dom import DOMNode

from vramtop import tui
from vramtop.tui.keys import FIXED_KEYS, KEYS, ids_by_place, key_name, parse_key

_FIXED = {parse_key(name) for fixed in FIXED_KEYS for name in fixed.names}


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


def test_keys_of_one_class_are_those_of_a_place_where_clashes_are_looked_for() -> None:
    """A screen whose bindings change is not forgotten in the list of places."""
    places = ids_by_place().values()
    assert set(KEYS) == set().union(*places)
    small = {"HelpScreen", "CopiedTextScreen", "SaveJobScreen", "OpenJobScreen", "OpenFileScreen"}
    by_class: dict[str, set[str]] = {}
    for where, binding in own_bindings():
        if binding.id is not None and where not in small:
            by_class.setdefault(where, set()).add(binding.id)
    for where, ids in by_class.items():
        assert any(ids <= place for place in places), where


def test_the_default_keys_have_textuals_names() -> None:
    for key_id, key in KEYS.items():
        for name in key.keys.split(","):
            assert parse_key(name) == name, key_id


@pytest.mark.parametrize(
    ("text", "key", "shown"),
    [
        ("F5", "f5", "F5"),
        ("ctrl+k", "ctrl+k", "Ctrl+K"),
        ("Ctrl+Shift+Left", "ctrl+shift+left", "Ctrl+Shift+←"),
        ("?", "question_mark", "?"),
        ("page_up", "pageup", "PgUp"),
        ("Esc", "escape", "Esc"),
        (",", "comma", ","),
        ("+", "plus", "+"),
        ("ctrl++", "ctrl+plus", "Ctrl++"),
        ("shift+k", "K", "K"),
        ("K", "K", "K"),
        ("space", "space", "Space"),
    ],
)
def test_a_key_is_written_as_people_write_it(text: str, key: str, shown: str) -> None:
    assert parse_key(text) == key
    assert key_name(key) == shown


def sent(text: str) -> Any:
    """Return Textual's name of the key for which a terminal sends this."""
    from textual._xterm_parser import XTermParser
    from textual.events import Key

    events = list(XTermParser().feed(text))
    return next(event.key for event in events if isinstance(event, Key))


@pytest.mark.parametrize("character", [*"abcKZ059!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "é"])
def test_the_name_of_a_character_is_that_of_the_key_which_a_terminal_sends(character: str) -> None:
    assert parse_key(character) == sent(character)
