"""Modules of recorded stacks, by the source that stands on this machine; other versions and other files say nothing."""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from memory_snapshots import CALL, MIB, Recorder

from vramtop.estimator.crash.snapshot.records import MemorySnapshot
from vramtop.estimator.crash.snapshot.snapshot_reader import parse_snapshot
from vramtop.tui.draw.text_output import TextOutput
from vramtop.tui.reports.crash_text import snapshot_lines

SOURCE = """\
raise SystemExit("this file is parsed, never imported")
class Mlp(Module):
    def forward(self, x):
        return self.down(self.act(self.up(x)))
class Block(Module):
    def helper(self, x):
        return self.mlp(
            self.norm(x),
        )
    def forward(self, x):
        h = self.attn(x)
        return x + self.helper(h)
class Net(Module):
    def forward(self, ids):
        x = self.embed(ids)
        for index, block in enumerate(self.layers[:2]):
            x = block(x)
        last = self.tail[0]
        x = last(x)
        return self.head.out(x)
def train(model):
    model(1)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(SOURCE)
    return path


def read(*stacks: list[tuple[str, int, str]], **more: Any) -> MemorySnapshot:
    recorder = Recorder()
    for mib, stack in enumerate(stacks, 1):
        recorder.alloc(mib, stack)
    return parse_snapshot(io.BufferedReader(io.BytesIO(pickle.dumps(recorder.snapshot(**more)))))  # type: ignore[arg-type]


def stack(file: Path, *places: tuple[int, str]) -> list[tuple[str, int, str]]:
    """Frames of the file, the outermost first, with torch's call of a module between them."""
    inner_first: list[tuple[str, int, str]] = []
    for line, name in reversed(places):
        inner_first += [(str(file), line, name), CALL]
    return [*inner_first[:-1]]


def modules(snapshot: MemorySnapshot) -> list[tuple[str | None, ...] | None]:
    found = [(group.module, group.module_class, group.part) for group in reversed(snapshot.groups)]
    return [None if each == (None, None, None) else each for each in found]


def test_paths_classes_and_parts_as_the_source_says_them(file: Path) -> None:
    train, net, loop = (22, "train"), (20, "forward"), (17, "forward")
    helper = [(str(file), 7, "helper"), (str(file), 12, "forward"), CALL, *stack(file, train, loop)]
    found = read(
        stack(file, train, (15, "forward")),
        stack(file, train, net),
        stack(file, train, loop, (11, "forward")),
        [(str(file), 4, "forward"), CALL, *helper],
        stack(file, train, (19, "forward"), (12, "forward")),
        stack(file, train),
    )
    assert modules(found) == [
        ("", "Net", "rest"),
        ("", "Net", "rest"),
        ("layers.*", "Block", "rest"),
        ("layers.*.mlp", "Mlp", "MLP"),
        ("tail.*", "Block", "rest"),
        None,
    ]
    assert found.parts["activations"] == {"MLP": 4 * MIB, "rest": 11 * MIB}
    lines = list(snapshot_lines(found, TextOutput(colour_depth="none", ascii_only=True, width=120)))
    assert any(line.split()[:4] == ["0.00", "1", "activations", "layers.*.mlp"] for line in lines)


@pytest.mark.parametrize("what", ["another version", "changed since", "not Python", "a pipe", "too deep", "gone"])
def test_a_source_that_is_not_that_of_the_run_says_nothing(what: str, file: Path) -> None:
    written = {"vramtop": {"time": file.stat().st_mtime - 60}} if what == "changed since" else {}
    if what == "another version":
        file.write_text("# one line more\n" * 3 + SOURCE)
    elif what == "not Python":
        file.write_text("class Net(:")
    elif what == "too deep":
        file.write_text("x = " + "(" * 100_000)
    elif what in ("a pipe", "gone"):
        file.unlink()
        if what == "a pipe":
            os.mkfifo(file)
    found = read(stack(file, (22, "train"), (15, "forward")), stack(file, (22, "train"), (17, "forward")), **written)
    assert modules(found) == [None, None]
    assert found.parts == {}


def test_a_source_that_is_older_than_the_snapshot_counts(file: Path) -> None:
    found = read(stack(file, (22, "train"), (15, "forward")), vramtop={"time": file.stat().st_mtime + 60})
    assert modules(found) == [("", "Net", "rest")]
