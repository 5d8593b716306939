"""The documentation's pictures are those that the program draws now, and any reader's browser can show them."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from pinned_versions import other_version

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
SCRIPTS = ROOT / "docs" / "scripts"
SHOWN = {
    "dashboard": ("▲ OVER", "within budget", "DOES NOT FIT", "qwen-14b-lora"),
    "runs": ("rank 0", "rank 3", "4 procs", "vLLM server"),
    "hosts": ("node02", "▲ OVER", "unreachable", "llama-70b-lora", "HOST"),
    "attach": ("Why?", "OVER", "weights"),
    "fit-check": ("least costly first", "change", "cost", "QLoRA"),
    "step": ("One training step", "backward", "optimizer"),
    "gpu": ("bandwidth", "clocks", "NVLink", "PCIe"),
    "tour": ("vramtop --demo", "▲ OVER", "Why?", "DOES NOT FIT", "QLoRA", "FITS"),
}
"""What the pages say that a picture shows; signs are shapes."""
SIGNS = "▲✓✗"


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("name", SHOWN)
def test_picture_is_on_a_page_shows_what_that_says_and_loads_nothing(name: str) -> None:
    """Fonts and other files from elsewhere are not loaded on GitHub's pages."""
    assert any(f"pictures/{name}.svg)" in page.read_text(encoding="utf-8") for page in PAGES)
    check(PICTURES / f"{name}.svg", SHOWN[name])


def test_recording_plays() -> None:
    """Its first line is the header, the others are events in order."""
    check_recording(PICTURES / "tour.cast")


@pytest.mark.slow
@pytest.mark.published
def test_pictures_are_those_that_the_program_draws_now(tmp_path: Path) -> None:
    """Byte by byte, with the libraries that requirements/ names; ``make picture`` draws them again.

    Most of the time the programs wait until a screen stays as it is, so they run at once.
    """
    check_versions(["textual", "torch", "transformers"])
    alone = ("fit-check", "step")  # searches for jobs that fit; traces a model
    others = [name for name in SHOWN if name not in {*alone, "tour"}]
    pictures = [("make_pictures.py", names) for names in (others, *([name] for name in alone))]
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, SCRIPTS / script, "--folder", tmp_path, *names], stdout=subprocess.DEVNULL
                )
            )
            for script, names in (("make_recording.py", []), *pictures)
        ]
        assert [each.wait(600) for each in running] == [0] * len(running)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == sorted(["tour.cast", *(f"{name}.svg" for name in SHOWN)])
    old = [name for name in drawn if (PICTURES / name).read_bytes() != (tmp_path / name).read_bytes()]
    assert old == [], "these are out of date: make picture"


def test_every_picture_is_known_here() -> None:
    """A picture that nothing draws cannot be kept up to date."""
    drawn_elsewhere = {"rooms"}  # docs/scripts/make_architecture.py, held by tests/test_architecture.py
    assert {path.stem for path in PICTURES.iterdir()} == set(SHOWN) | drawn_elsewhere


def check_versions(names: Sequence[str]) -> None:
    """Skip where a library is not the one with which the pictures are drawn."""
    if other := other_version(names):
        pytest.skip(f"pictures are drawn {other}")


def check(path: Path, shown: tuple[str, ...]) -> None:
    """A picture is XML, small, complete in itself, and contains these words; a word is as wide as its columns."""
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 300_000
    assert not re.search(r"url\(|@import|@font-face|<image|<script|href", text)
    words = list(ET.fromstring(text).iter("{http://www.w3.org/2000/svg}text"))  # noqa: S314
    content = " ".join(word.text or "" for word in words)
    for each in shown:
        assert each.strip(SIGNS + " ") in content, each
    assert all(
        float(word.attrib["textLength"]) == 10 * len(word.text or "")
        for word in words
        if "text-anchor" not in word.attrib
    )


def check_recording(path: Path) -> None:
    """A recording has a size, and events in the order of their times."""
    header, *events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert (header["version"], header["width"], header["height"]) == (2, 100, 32)
    times = [at for at, _, _ in events]
    assert times == sorted(times)
    assert path.stat().st_size < 300_000
    sent = "".join(data for _, kind, data in events if kind == "o")
    plain = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", sent)
    for each in SHOWN["tour"]:
        assert each in plain, each
