"""The tables of docs/explanation/accuracy.md are those of the accuracy table."""

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


def test_only_the_named_tables_change(pages) -> None:
    text = "a\n<!-- table: peers -->\nold\n<!-- table: end -->\nb\n<!-- table: off -->\nkept\n<!-- table: end -->\n"
    assert pages.with_tables(text, {"peers": "new"}) == text.replace("-->\nold\n<!--", "-->\n\nnew\n\n<!--")
