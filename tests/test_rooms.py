"""The rooms: each folder of the packages says what it is for."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("estimator", "monitor", "tui")


def modules() -> dict[str, Path]:
    """Every module by its dotted name without ``vramtop.``; a package by the name of its folder."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
ROOMS = [name for name, path in MODULES.items() if path.name == "__init__.py" and name not in PACKAGES]
FRONT_DOORS = [name for name in ROOMS if "lazy_exports(" in MODULES[name].read_text()]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_lives_there_and_who_calls_it(room: str) -> None:
    docstring = ast.get_docstring(ast.parse(MODULES[room].read_text())) or ""
    first, _, rest = docstring.partition("\n\n")
    assert first.endswith(".")
    assert "Lives here: " in rest
    assert "Callers: " in rest


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_five_to_fourteen_rooms_and_its_front_door(package: str) -> None:
    assert 5 <= len([room for room in ROOMS if room.count(".") == 1 and room.startswith(package + ".")]) <= 14
    assert len(list((ROOT / package).glob("*.py"))) <= 2


@pytest.mark.parametrize("room", FRONT_DOORS)
def test_a_front_door_exports_what_type_checkers_see(room: str) -> None:
    tree = ast.parse(MODULES[room].read_text())
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    declared = {
        (f"vramtop.{room}.{node.module}", alias.name)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    package = importlib.import_module(f"vramtop.{room}")
    assert {name for _, name in declared} == set(package.__all__)
    for module, name in declared:
        assert getattr(package, name) is getattr(importlib.import_module(module), name)


def test_modules_named_in_strings_exist() -> None:
    """Programs in strings and names to be replaced in tests are seen by no type checker."""
    texts = [path for folder in (*PACKAGES, "tests", "docs") for path in (ROOT / folder).rglob("*.py")]
    missing = set()
    for path in texts:
        for match in re.finditer(r"\bvramtop\.((?:estimator|monitor|tui)(?:\.[a-z_]+)*)", path.read_text()):
            parts = match[1].split(".")
            known = max(at for at in range(1, len(parts) + 1) if ".".join(parts[:at]) in MODULES)
            in_module = parts[known:] and re.search(
                rf"\b{parts[known]}\b", MODULES[".".join(parts[:known])].read_text()
            )
            if parts[known:] and not in_module and "made_up" not in parts:
                missing.add(f"{path.name}: {match[0]}")
    assert not missing
