"""Notebooks as scripts: which cells count, in which order, and what only IPython understands."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.readers.source.notebooks import read_notebook


def cell(source: str, count: int | None = None, **metadata: Any) -> dict[str, Any]:
    return {"cell_type": "code", "source": source, "execution_count": count, "metadata": metadata, "outputs": []}


def write(path: Path, *cells: dict[str, Any], **metadata: Any) -> Path:
    path.write_text(json.dumps({"cells": [*cells], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}))
    return path


@pytest.mark.parametrize(
    ("written", "python"),
    [
        ("!pip install x", "pass"),
        ("if True:\n    !ls\n    %matplotlib inline", "if True:\n    pass\n    pass"),
        ("files = !ls", "files = __known_to_ipython_only__"),
        ("%env LEVEL=3", "import os; os.environ['LEVEL'] = '3'"),
        ("%time train()", "train()"),
        ("%%time\ntrain()", "\ntrain()"),
        ("%%bash\nrm x", "\n"),
        ("model.generate?", "pass"),
        ("x = 7 % 3\ny = a != b", "x = 7 % 3\ny = a != b"),
        ("text = '''\n!not a command\n'''", "text = '''\n!not a command\n'''"),
        ("!pip install \\\n  x", "pass\n"),
        ("", ""),
    ],
)
def test_what_only_ipython_understands(tmp_path: Path, written: str, python: str) -> None:
    assert read_notebook(write(tmp_path / "a.ipynb", cell(written))).text == python


def test_cells_that_ran_in_their_order_and_the_one_that_runs(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.ipynb", cell("a = 1", 4), cell("b = 2"), cell("c = 3", 2), cell("train()"), cell("d = 4")
    )
    os.utime(path, (1000, 1000))
    ran = read_notebook(path, started_at=900)
    assert ran.text.splitlines() == ["c = 3", "a = 1", "b = 2"]
    path = write(tmp_path / "b.ipynb", cell("a = 1", 1), cell("c = 3", 2), cell("train()"), cell("d = 4"))
    os.utime(path, (1000, 1000))
    ran = read_notebook(path, started_at=900)
    assert ran.text.splitlines() == ["a = 1", "c = 3", "train()"]
    assert "later changes are not" in ran.doubts[0]


def test_counts_of_an_earlier_kernel_do_not_count(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ipynb", cell("a = 1", 7), cell("b = 2"))
    os.utime(path, (1000, 1000))
    found = read_notebook(path, started_at=2000)
    assert found.text.splitlines() == ["a = 1", "b = 2"]
    assert "it was not saved after its kernel started" in found.doubts[0]
    assert read_notebook(path).doubts == ()


def test_a_cell_that_is_no_python_is_left_out(tmp_path: Path) -> None:
    found = read_notebook(write(tmp_path / "a.ipynb", cell("a = ("), cell("b = 2")))
    assert found.text == "b = 2"
    assert found.doubts == ("a.ipynb: vramtop cannot read cell 1 as Python; it is not counted.",)


def test_places_are_cells(tmp_path: Path) -> None:
    found = read_notebook(write(tmp_path / "a.ipynb", cell("a = 1\nb = 2"), cell("c = 3")))
    assert [found.place(line) for line in (1, 2, 3, 9)] == ["cell 1 line 1", "cell 1 line 2", "cell 2 line 1", "line 9"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"cells": 3}', '{"nbformat": 4}', "\x00", '{"cells": [' + "[" * 5000 + "]" * 5000 + "]}"]
)
def test_other_files_are_no_notebooks(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.ipynb").write_text(text)
    with pytest.raises(InputError, match="not a notebook"):
        read_notebook(tmp_path / "a.ipynb")


def test_notebooks_with_odd_contents(tmp_path: Path) -> None:
    """Values of other types than the format has, and another language."""
    odd = [None, 3, {"cell_type": "code"}, {"cell_type": "code", "source": [1, "x"], "metadata": 2}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": odd, "metadata": []}))
    assert read_notebook(tmp_path / "a.ipynb").text == ""
    with pytest.raises(InputError, match="a notebook in julia"):
        read_notebook(write(tmp_path / "c.ipynb", kernelspec={"language": "julia"}))


def test_parameters_come_after_their_cell(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ipynb", cell("batch = 2", tags=["parameters"]), cell("use(batch)"))
    assert read_notebook(path, parameters={"batch": 4}).text.splitlines() == ["batch = 2", "batch = 4", "use(batch)"]
    path = write(tmp_path / "b.ipynb", cell("use(batch)"))
    assert read_notebook(path, parameters={"batch": 4}).text.splitlines() == ["batch = 4", "use(batch)"]
