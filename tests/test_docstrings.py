"""First lines of docstrings: each says what a thing is or does, without the line above it."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDS_ITS_NEIGHBOUR = re.compile(r"(Of|The same|Likewise|Those|As|Who)\b")
IS_A_CLAUSE = re.compile(r"(What|Who|How|Which|Whether|Where|When)\b")
WORTH_PARSING = re.compile(rf'"""\s*(?:{NEEDS_ITS_NEIGHBOUR.pattern}|{IS_A_CLAUSE.pattern})')


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The docstrings of classes, functions, and of what is assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield node.lineno, text
        body = getattr(node, "body", None)
        for before, after in pairwise(body) if isinstance(body, list) else ():
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
            if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(text, str):
                yield after.lineno, text


@pytest.mark.parametrize("package", ["estimator", "monitor", "tui"])
def test_a_docstring_is_understood_by_itself(package: str) -> None:
    bad = []
    for path in sorted((ROOT / package).rglob("*.py")):
        if not WORTH_PARSING.search(source := path.read_text()):
            continue
        tree, name = ast.parse(source), path.relative_to(ROOT)
        if IS_A_CLAUSE.match(first := ast.get_docstring(tree) or ""):
            bad.append(f"{name}:1: {first}")
        bad += [f"{name}:{line}: {text}" for line, text in docstrings(tree) if NEEDS_ITS_NEIGHBOUR.match(text)]
    assert not bad, "\n".join(bad)
