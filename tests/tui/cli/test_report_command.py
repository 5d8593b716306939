"""``vramtop report`` writes one file, and says in a sentence what is wrong with its input."""

from pathlib import Path

import pytest
from command_line import vramtop
from eventful_recording import write_recording
from json_schemas import valid_json

pytestmark = pytest.mark.usefixtures("in_folder")


def test_a_recording_becomes_a_file_beside_nothing_else(tmp_path: Path) -> None:
    write_recording(tmp_path / "night.jsonl.gz")
    assert vramtop("report", "night.jsonl.gz") == (0, "night.html: open it in a browser\n", "")
    assert (tmp_path / "night.html").read_text().startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["night.html", "night.jsonl.gz"]
    code, _, err = vramtop("report", "night.jsonl.gz")
    assert (code, err) == (
        2,
        "vramtop: night.html already exists; name another file with --out, or replace it with --overwrite\n",
    )
    code, out, _ = vramtop("report", "night.jsonl.gz", "--overwrite", "--json")
    assert (code, valid_json("report", out)) == (0, {"schema": 1, "file": "night.html"})


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("missing.jsonl", None, "missing.jsonl: cannot be read: No such file or directory"),
        ("empty.jsonl", b"", "empty.jsonl: the file is empty; a recording is made with 'vramtop record FILE'"),
        ("notes.txt", b"hello\n", "notes.txt: not a vramtop recording; one is made with 'vramtop record FILE'"),
    ],
)
def test_what_is_no_recording_is_one_sentence(tmp_path: Path, name: str, content: bytes | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, out, err = vramtop("report", name)
    assert (code, out) == (2, "")
    assert err.startswith(f"vramtop: {sentence}")
    assert err.count("\n") == 1


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    write_recording(tmp_path / "run.jsonl")
    code, _, err = vramtop("report", "run.jsonl", "--out", "nowhere/run.html")
    assert (code, err) == (2, "vramtop: nowhere/run.html: cannot be written: No such file or directory\n")
