"""Each promise of SECURITY.md names the tests that hold it, and these exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)


def promises() -> list[str]:
    """Return the lines of the promises: of all sections before the last ones, without what is not promised there."""
    text = re.sub(r"^Not promised:\n.*?^## ", "## ", TEXT, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^- .*$", text.partition("## What is not promised")[0], re.MULTILINE)


def test_each_promise_has_a_test() -> None:
    assert len(promises()) > 20
    for promise in promises():
        assert "`tests/" in promise, f"no test holds: {promise}"


def test_the_tests_of_the_promises_exist() -> None:
    assert len(NAMED) > 40
    for file, name in NAMED:
        path = ROOT / file
        assert path.is_file(), f"SECURITY.md names {file}, which does not exist"
        functions = ast.parse(path.read_text(encoding="utf-8")).body
        names = {node.name for node in functions if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert not name or name in names, f"SECURITY.md names {file}::{name}, which does not exist"
        assert any(each.startswith("test_") for each in names)
