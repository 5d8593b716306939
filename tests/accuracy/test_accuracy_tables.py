"""The tables of accuracy.md are those of the accuracy table, and mechanisms.md names tests that exist."""

import ast
import re
import sys
from pathlib import Path

import pytest
from predictions import predict_all

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch):
    """The script that writes the tables."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "scripts"))
    monkeypatch.delitem(sys.modules, "make_accuracy_tables", raising=False)
    import make_accuracy_tables

    return make_accuracy_tables


@pytest.mark.slow
@pytest.mark.published
def test_the_closed_forms_tables_are_up_to_date(pages) -> None:
    found = pages.tables(predict_all("formula")[0])
    assert pages.PAGE.read_text() == pages.with_tables(pages.PAGE.read_text(), found), "run `make figures`"


def test_every_table_has_its_place_and_is_filled(pages) -> None:
    text = pages.PAGE.read_text()
    places = re.findall(r"<!-- table: ([\w ]+) -->\n\n(.*?)\n\n<!-- table: end -->", text, re.DOTALL)
    assert {name for name, _ in places} == {*("closed form", "peers", "left out", "covered", "off", "gpus")}
    assert all(table.strip() for _, table in places)


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
