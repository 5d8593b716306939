"""Each promise of SECURITY.md names the tests that hold it, and these exist."""

import ast
import re
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)


def rows() -> list[str]:
    """Return the rows of the tables, without their headings and lines."""
    lines = TEXT.splitlines()
    return [
        line
        for line, below in pairwise(lines)
        if line.startswith("| ") and not line.startswith("| ---") and not below.startswith("| ---")
    ]


def test_each_promise_has_a_test() -> None:
    assert len(rows()) > 20
    for row in rows():
        assert "`tests/" in row.rpartition(" | ")[2], f"no test holds: {row}"


def test_the_tests_of_the_promises_exist() -> None:
    assert len(NAMED) > 40
    for file, name in NAMED:
        path = ROOT / file
        assert path.is_file(), f"SECURITY.md names {file}, which does not exist"
        functions = ast.parse(path.read_text(encoding="utf-8")).body
        names = {node.name for node in functions if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert not name or name in names, f"SECURITY.md names {file}::{name}, which does not exist"
        assert any(each.startswith("test_") for each in names)
