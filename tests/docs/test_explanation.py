"""docs/explanation: its worked examples are what vramtop prints, and what it says of the code is so."""

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from json_schemas import valid_json

from vramtop.tui.cli.main import main

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "explanation"
PAGES = sorted(FOLDER.glob("*.md"))
HEAD = "| figure | when | arithmetic | bytes | GiB |"
ABOUT_FIGURES = {"allocated": "allocated_bytes", "reserved": "reserved_bytes", "device": "device_bytes"}


class Example(NamedTuple):
    """One row of a worked example."""

    command: str
    figure: str
    when: str
    arithmetic: str
    size: int
    gib: str


def examples(page: Path) -> Iterator[Example]:
    """Yield the rows of a page's worked examples, each with the command before it."""
    command, in_table = "", False
    for line in page.read_text().splitlines():
        command = line if line.startswith("vramtop estimate ") else command
        in_table = line == HEAD or (in_table and line.startswith("|"))
        if in_table and line != HEAD and not line.startswith("| ---"):
            figure, when, arithmetic, size, gib = (cell.strip() for cell in line.strip("|").split("|"))
            yield Example(command, figure, when, arithmetic, int(size.replace(",", "")), gib)


def worked_out(arithmetic: str) -> float:
    """Return the value of an example's arithmetic: numbers, operators and square roots."""
    text = arithmetic.replace(",", "").replace("×", "*").replace("−", "-").replace("÷", "/").replace("²", "**2")
    return eval(text, {"__builtins__": {}, "sqrt": sqrt})  # noqa: S307 - the documentation is ours


def predicted(budget: dict[str, Any], figure: str, when: str) -> int:
    """Return a figure of a budget by the words of an example."""
    if when == "host":
        return budget["host"][figure]
    peak = budget["peak"]
    name, _, end = figure.partition(" ")
    if when == "peak" and name in ABOUT_FIGURES:
        if not end:
            return peak[ABOUT_FIGURES[name]]
        return (peak if name == "device" else peak[f"{name}_range"])[f"{end}_bytes"]
    if when == "peak":
        return peak["components"][figure]
    return next(phase for phase in budget["phases"] if phase["name"] == when)["components"][figure]


@pytest.fixture(scope="module")
def vramtop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Run a command of a page, each once, without this user's history and settings, and return what it prints."""
    folder = tmp_path_factory.mktemp("user")

    @cache
    def run(command: str) -> str:
        printed = StringIO()
        with redirect_stdout(printed):
            assert main(shlex.split(command)[1:]) == 0
        return printed.getvalue()

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("COLUMNS", "100")
        for name in ("CACHE", "CONFIG", "DATA", "STATE"):
            monkeypatch.setenv(f"XDG_{name}_HOME", str(folder / name))
        yield run


@pytest.mark.slow
@pytest.mark.published
@pytest.mark.parametrize("page", [page.stem for page in PAGES if HEAD in page.read_text()])
def test_worked_examples_are_right_and_are_what_vramtop_estimates(page: str, vramtop: Callable[[str], str]) -> None:
    found = list(examples(FOLDER / f"{page}.md"))
    assert found
    for example in found:
        budget = valid_json("estimate", vramtop(f"{example.command} --json"))
        assert worked_out(example.arithmetic) == pytest.approx(example.size, abs=1, rel=0), example
        assert predicted(budget, example.figure, example.when) == example.size, example
        assert f"{example.size / 2**30:.2f}" == example.gib, example


def test_what_a_page_shows_of_the_terminal_is_what_the_command_prints(vramtop: Callable[[str], str]) -> None:
    shown = re.findall(
        r"```console\n\$ (vramtop estimate .*)\n([^$]*?)```", (FOLDER / "how-it-estimates.md").read_text()
    )
    assert shown
    for command, text in shown:
        lines = vramtop(command).splitlines()
        for line in text.splitlines():
            assert line == "..." or line in lines, line


def test_every_named_file_exists() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"`((?:estimator|monitor|tui|tests|docs)/[\w/.-]*)(?:::\w+)?`", text))
    assert not {name for name in named if not (ROOT / name).exists()}


def test_what_the_pages_say_of_the_code_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "scripts"))
    monkeypatch.delitem(sys.modules, "make_explanation", raising=False)
    from make_explanation import filled

    for page in PAGES:
        assert page.read_text() == filled(page.read_text()), f"{page.name}: run `make reference`"


UNITS = {"s": 1, "min": 60, "GiB": 2**30, "MiB": 2**20, "%": 0.01, "steps": 1, "deviations": 1, "spans": 1}
CONSTANTS = {
    "largest difference that counts as none": "estimator/common/sizes.py::UNSEEN_BYTES",
    "OVER stays until memory is below the bound by": "monitor/board/run_phases.py::_HYSTERESIS_FRACTION",
    "predicted weights that count as loaded": "monitor/board/run_phases.py::_LOADED_FRACTION",
    "a run is steady after": "monitor/board/run_phases.py::STEADY_STEPS",
    "steady: budget reached, no new peak": "monitor/board/run_phases.py::_PEAK_UNCHANGED_SECONDS",
    "smallest change that counts, of the budget": "monitor/board/run_phases.py::MIN_CHANGE_FRACTION",
    "least growth that is reported, or the share above": "monitor/board/comparison.py::MIN_GROWTH_BYTES",
    "significant trend": "monitor/board/growth.py::MIN_DEVIATIONS",
}
"""What the page says of thresholds, and the constants of the code."""


def test_thresholds_of_statuses_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "how-to" / "read-the-dashboard.md").read_text()
    told = re.findall(r"^- (.*): ([\d.]+) (\w+|%)$", page.partition("### Thresholds")[2], re.MULTILINE)
    assert [what for what, *_ in told] == list(CONSTANTS)
    for what, number, unit in told:
        module, _, name = CONSTANTS[what].replace("/", ".").partition(".py::")
        constant = getattr(import_module(f"vramtop.{module}"), name)
        assert float(number) * UNITS[unit] == pytest.approx(constant, rel=1e-6), name
