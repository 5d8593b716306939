"""The list of mechanisms in docs/explanation/mechanisms.md names tests that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^- (?P<mechanism>[^:]+): (?P<source>.+); (?P<tests>`tests/\S+)$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[re.Match[str]]:
    text = (ROOT / "docs" / "explanation" / "mechanisms.md").read_text()
    found = list(ROW.finditer(text))
    assert len(found) == len(re.findall("^- ", text, re.MULTILINE))
    return found


def test_every_mechanism_has_a_source_and_a_test_that_exists() -> None:
    assert rows()
    for row in rows():
        tests = TEST.findall(row["tests"])
        assert row["source"].strip(), row["mechanism"]
        assert tests, row["mechanism"]
        for path, name in tests:
            tree = ast.parse((ROOT / path).read_text())
            assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, (
                f"{path}::{name}"
            )


def test_no_mechanism_is_listed_twice() -> None:
    names = [row["mechanism"].strip() for row in rows()]
    assert len(set(names)) == len(names)
