"""What README and documentation tell the reader to type is understood, and what they print is printed."""

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from vramtop.estimator.budget import Budget
from vramtop.estimator.job.job_file.load_and_save import load_job
from vramtop.tui.cli.main import COMMANDS, build_parser, main
from vramtop.tui.cli.parsing.first_word import with_command

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
BLOCK = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def blocks(page: str, *languages: str) -> Iterator[str]:
    for match in BLOCK.finditer(PAGES[page]):
        if match[2] in languages:
            yield textwrap.dedent(match[3])


def commands(page: str) -> Iterator[str]:
    """Yield what the reader types: the lines of shell blocks, and those after a prompt."""
    for language, only_prompts in (("sh", False), ("bash", False), ("console", True), ("text", True)):
        for block in blocks(page, language):
            for line in block.replace("\\\n", " ").splitlines():
                typed = line.removeprefix("$ ")
                if typed.startswith("vramtop ") and (typed != line or not only_prompts):
                    yield re.split(r"&&|\|\||[;|>]", typed)[0] if "'" not in typed else typed


TYPED = [(page, command) for page in PAGES for command in commands(page)]


@pytest.mark.parametrize("page", sorted({page for page, _ in TYPED}))
def test_the_command_line_understands_each_command(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without running it: flags and values are those of the parsers."""
    parser = build_parser()
    for command in [typed for where, typed in TYPED if where == page]:
        words = shlex.split(command, comments=True)[1:]
        arguments = words[: words.index("--")] if "--" in words else words
        if arguments and arguments[0].isdigit():  # a pid, which must be that of a process
            arguments[0] = str(os.getpid())
        if arguments and arguments[0] not in COMMANDS:
            arguments = with_command(arguments, tuple(COMMANDS), parser.flags_with_value())
        code, unknown = None, []
        try:
            _, unknown = parser.parse_known_args(arguments)
        except SystemExit as end:  # after --help too
            code = end.code
        assert (code or 0, unknown) == (0, []), f"{page}: {command}: {capsys.readouterr().err}"


def test_job_files_of_the_documentation_are_job_files(tmp_path: Path) -> None:
    """Tables that are shown alone are added to a file with a model."""
    found = [block for page in PAGES for block in blocks(page, "toml") if "[model]" in block or "job-files" in page]
    assert len(found) > 4
    for block in found:
        whole = block if "[model]" in block else '[model]\nid = "meta-llama/Llama-3.1-8B"\n' + block
        (tmp_path / "job.toml").write_text(whole, encoding="utf-8")
        load_job(tmp_path / "job.toml")


def test_the_estimate_from_python_runs_and_prints_a_table() -> None:
    snippets = [block for page in PAGES for block in blocks(page, "python") if "print(budget)  # a table" in block]
    assert snippets
    for snippet in snippets:
        said = io.StringIO()
        names: dict[str, object] = {}
        with contextlib.redirect_stdout(said):
            exec(snippet, names)  # noqa: S102 - the documentation is ours
        budget = names["budget"]
        assert isinstance(budget, Budget)
        assert said.getvalue().rstrip() == str(budget)
        assert "optimizer" in said.getvalue()


def transcripts() -> Iterator[tuple[str, str, list[str]]]:
    """Yield the page, command and printed lines of sessions that need no GPU and no file."""
    for page in PAGES:
        for block in blocks(page, "console"):
            for session in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *printed = session.splitlines()
                if "--gpu-type" in command and command.startswith(("vramtop llama", "vramtop fit llama")):
                    yield page, command, printed


@pytest.mark.slow
@pytest.mark.published
def test_what_the_documentation_prints_is_printed(tmp_path: Path) -> None:
    """Line by line, as on a machine without torch; ``...`` stands for lines that are left out."""
    sessions = list(transcripts())
    assert sessions
    for page, command, printed in sessions:
        words = [sys.executable, "-m", "vramtop.tui.cli", *shlex.split(command)[1:], "--method", "formula"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        said = iter(done.stdout.splitlines())
        for line in printed:
            assert line == "..." or line in said, f"{page}: {command}: {line}"


def test_keys_of_the_how_tos_are_those_of_the_program() -> None:
    """Function keys and those with Ctrl; the page of all keys is written from the code."""
    known = set(re.findall(r"`([^`]+)`", PAGES["docs/reference/keys.md"]))
    named = {
        (page, key)
        for page, text in PAGES.items()
        if "/how-to/" in page
        for key in re.findall(r"`(F\d+|Ctrl\+\w)`", text)
    }
    assert len(named) > 10
    assert {(page, key) for page, key in named if key not in known} == set()


def test_settings_of_the_documentation_are_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake in the file would be a sentence."""
    for block in blocks("docs/how-to/settings.md", "toml"):
        here = block.replace("/opt/conda/bin/python", sys.executable)
        (tmp_path / "config.toml").write_text(here, encoding="utf-8")
        assert main(["--config", str(tmp_path / "config.toml"), "config"]) == 0
        told = capsys.readouterr()
        assert (told.err, "config.toml:2" in told.out) == ("", True)


def test_the_readme_tells_the_accuracy_on_figures_that_were_not_seen_before() -> None:
    """The same figures as on the page of the accuracy, and none of those that rules were made from."""
    told = re.findall(r"^- \*\*([\d.]+ %)\*\*", PAGES["README.md"], flags=re.MULTILINE)
    page = " ".join(PAGES["docs/explanation/accuracy.md"].split())
    unseen = page.partition("When 87 further figures were predicted for the first time")[2]
    assert len(told) == 3
    places = [unseen.index(figure) for figure in told]
    assert places == sorted(places)


def test_links_of_the_readme_lead_to_files_and_headings() -> None:
    """The site's own links are followed in a test of the site."""
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES["README.md"]):
        path, _, heading = target.partition("#")
        assert (ROOT / path).is_file(), target
        headings = [
            re.sub(r"[^\w\- ]", "", line.lower()) for line in (ROOT / path).read_text(encoding="utf-8").splitlines()
        ]
        assert not heading or any(line.strip().replace(" ", "-") == heading for line in headings), target


def test_the_files_that_it_names_exist() -> None:
    """A name without a folder is that of some module or file of a room."""
    rooms = ("estimator", "monitor", "tui", "docs", "tests")
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(rf"`((?:{'|'.join(rooms)})/[\w./]+)`", text))
    assert len(paths) > 15
    assert not {path for path in paths if not (ROOT / path).exists()}
    names = set(re.findall(r"`(\w+\.py)`", text))
    assert not {name for name in names if not any(next((ROOT / room).rglob(name), None) for room in rooms)}


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
