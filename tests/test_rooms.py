"""The rooms: each folder of the packages says what it is for."""

import ast
import re
from pathlib import Path

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
WITH_CODE = ("monitor.preflight.checks", "tui.cli")


def test_a_room_says_what_lives_there_and_has_no_code() -> None:
    for room in ROOMS:
        tree = ast.parse(MODULES[room].read_text())
        assert (ast.get_docstring(tree) or "").partition("\n\n")[0].endswith("."), room
        assert tree.body[1:] == [] or room in WITH_CODE, room


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
