"""The README's pictures: the scripts draw them from the present program, and any reader's browser can show them."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
SCRIPTS = ROOT / "docs" / "scripts"
SHOWN = {
    "dashboard": ("▲ OVER", "within budget", "DOES NOT FIT", "qwen-14b-lora"),
    "runs": ("rank 0", "rank 3", "4 procs", "vLLM server"),
    "attach": ("Why?", "OVER", "weights"),
    "fit-check": ("What makes it fit", "change", "cost", "QLoRA"),
    "step": ("One training step", "backward", "optimizer"),
    "gpu": ("bandwidth", "clocks", "NVLink", "PCIe"),
    "tour": ("vramtop --demo", "▲ OVER", "Why?", "DOES NOT FIT", "QLoRA", "FITS"),
}
"""What the README says that a picture shows; signs are shapes."""
SIGNS = "▲✓✗"


@pytest.mark.parametrize("name", SHOWN)
def test_picture_shows_what_the_readme_says_and_loads_nothing(name: str) -> None:
    """Fonts and other files from elsewhere are not loaded on GitHub's pages."""
    assert f"(docs/pictures/{name}.svg)" in (ROOT / "README.md").read_text()
    check(PICTURES / f"{name}.svg", SHOWN[name])


def test_recording_plays() -> None:
    """Its first line is the header, the others are events in order."""
    check_recording(PICTURES / "tour.cast")


@pytest.mark.slow
def test_pictures_are_drawn_from_the_program(tmp_path: Path) -> None:
    """All but the step, which traces a model."""
    names = [name for name in SHOWN if name not in {"step", "tour"}]
    subprocess.run(
        [sys.executable, SCRIPTS / "make_pictures.py", "--folder", tmp_path, *names], check=True, timeout=300
    )
    for name in names:
        check(tmp_path / f"{name}.svg", SHOWN[name])


@pytest.mark.slow
def test_tour_is_recorded_from_the_program(tmp_path: Path) -> None:
    """Its picture and its recording show the same."""
    subprocess.run([sys.executable, SCRIPTS / "make_recording.py", "--folder", tmp_path], check=True, timeout=300)
    check(tmp_path / "tour.svg", SHOWN["tour"])
    check_recording(tmp_path / "tour.cast")


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
