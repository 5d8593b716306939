"""The reference pages: those written from the code are current, and what they say holds in the program."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.load_and_save import load_job
from vramtop.monitor.storage.settings.in_force import settings_in_force
from vramtop.monitor.storage.settings.schema import SETTINGS
from vramtop.monitor.storage.settings.settings_file import read_toml
from vramtop.tui.cli.main import COMMANDS, build_parser
from vramtop.tui.cli.parsing.command_parser import subcommands

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
MIB = 2**20


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def blocks(name: str, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page(name), flags=re.MULTILINE | re.DOTALL)


def rows(text: str) -> list[list[str]]:
    """Cells of the rows of all tables, without their heads."""
    lines = re.findall(r"^\| (.*) \|$", text, flags=re.MULTILINE)
    cells = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)] for line in lines]
    heads = {at - 1 for at, line in enumerate(cells) if set(line[0]) == {"-"}}
    return [line for at, line in enumerate(cells) if at not in heads and at - 1 not in heads]


@pytest.mark.slow
@pytest.mark.published
def test_pages_are_those_that_the_code_writes() -> None:
    command = [sys.executable, ROOT / "docs" / "scripts" / "make_reference.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"run `make reference`; out of date are:\n{done.stdout}{done.stderr}"


def test_job_files_that_are_shown_can_be_estimated_and_use_every_table(tmp_path: Path) -> None:
    used = set()
    for text in blocks("job-file.md", "toml"):
        path = tmp_path / "job.toml"
        path.write_text(text)
        assert estimate(load_job(path), method="formula").peak.device_bytes > 0
        used |= {key for key, value in msgspec.toml.decode(text).items() if isinstance(value, dict | list)}
    assert used == {field.encode_name for field in msgspec.structs.fields(Job)} - {"name", "program"}


def test_defaults_of_the_job_file_change_nothing_when_they_are_written() -> None:
    """Each stated default, decoded as a job file would have it, is the job without it."""
    checked = 0
    for table, text in re.findall(r"^## `\[(\w+)\]`\n(.*?)(?=^## |\Z)", page("job-file.md"), re.MULTILINE | re.DOTALL):
        for line in re.findall(r"^- `(\w+ = [^`]+)`", text, re.MULTILINE):
            written = f"[{table}]\n{line}\n"
            assert msgspec.toml.decode(written, type=Job) == msgspec.toml.decode(f"[{table}]\n", type=Job), written
            checked += 1
    assert checked > 40


def test_defaults_of_the_settings_change_nothing_when_they_are_written() -> None:
    nowhere = settings_in_force({"VRAMTOP_CONFIG": "/dev/null"})
    checked = 0
    for table, text in re.findall(
        r"^## `\[([\w.]+)\]`\n(.*?)(?=^## |\Z)", page("settings.md"), re.MULTILINE | re.DOTALL
    ):
        for line in re.findall(r"^- `(\w+ = [^`]+)`", text, re.MULTILINE):
            name = f"{table}.{line.partition(' ')[0]}"
            found = read_toml(f"[{table}]\n{line}\n", "config.toml")
            assert not found.problems
            assert found.values == {name: nowhere.values[name]}
            checked += 1
    assert checked > 10


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_the_help_are_understood(command: str) -> None:
    """Each line is taken by the parser; what follows two spaces is a remark."""
    parser = build_parser()
    examples = next(sub.examples or "" for name, _, sub in subcommands(parser) if name == command)
    for line in re.findall(r"^  vramtop (.*)$", examples, flags=re.MULTILINE):
        words = re.split(r" {2,}| -- | [|>&]", line)[0].replace("'", "").split()
        if words and words[0] in COMMANDS and "--exec" not in words:
            options, unknown = parser.parse_known_args(words)
            assert (options.command, unknown) == (words[0], []), line


def test_every_variable_of_vramtop_that_the_code_names_is_documented() -> None:
    code = [path.read_text() for room in ("estimator", "monitor", "tui") for path in (ROOT / room).rglob("*.py")]
    named = {name for text in code for name in re.findall(r"\"(VRAMTOP_[A-Z_]+)\"", text)}
    assert len(named) >= 5
    of_the_probe = {"VRAMTOP_SNAPSHOT_ON_OOM"}  # from vramtop run to its processes
    documented = set(re.findall(r"`(VRAMTOP_[A-Z_]+)`", page("settings.md")))
    of_settings = {f"VRAMTOP_{each.name.replace('.', '_').upper()}" for each in SETTINGS}
    assert named - of_the_probe - of_settings <= documented


def test_every_name_of_a_card_finds_it_with_the_memory_that_is_stated() -> None:
    cards = re.findall(r"^- `(.*?)`: ≈?(\d+)(.*)$", page("cards.md"), re.MULTILINE)
    assert len(cards) > 40
    for name, mib, others in cards:
        gpu = find_gpu(name)
        assert gpu.total_bytes == int(mib) * MIB
        assert all(find_gpu(other) is gpu for other in re.findall(r"`(.*?)`", others))
