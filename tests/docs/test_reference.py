"""The reference: pages and schemas written from the code are current, and what they say holds in the program."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomlkit
from json_schemas import SCHEMAS, require_valid, schema
from jsonschema import Draft202012Validator
from reference.json_outputs import OUTPUTS

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.load_and_save import load_job
from vramtop.estimator.job.settings import ModelSpec
from vramtop.monitor.storage.settings.in_force import settings_in_force
from vramtop.monitor.storage.settings.schema import SETTINGS
from vramtop.monitor.storage.settings.settings_file import read_toml
from vramtop.tui.cli.main import COMMANDS, build_parser
from vramtop.tui.cli.parsing.help_text import flag_groups
from vramtop.tui.cli.parsing.parser import subcommands

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


NAMES = sorted(OUTPUTS)
TESTS = Path(__file__).parents[1]
WITHOUT_JSON = {"completion"}
"""Commands that print something else whatever is asked for: a script for a shell."""


def fields(part: Any, path: str = "$") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every field of a schema."""
    if isinstance(part, list):
        for each in part:
            yield from fields(each, path)
    elif isinstance(part, dict):
        for name, each in part.items():
            if name == "properties":
                yield from ((f"{path}.{field}", facts) for field, facts in each.items())
            yield from fields(each, f"{path}.{name}")


def test_each_output_has_a_schema_and_each_schema_an_output() -> None:
    assert {path.name for path in SCHEMAS.iterdir()} == {f"{name}.json" for name in [*NAMES, "job-file"]}


def test_every_command_has_an_output() -> None:
    printed = {line.split()[1] for output in OUTPUTS.values() for line in output.commands}
    assert set(COMMANDS) - WITHOUT_JSON <= printed


def test_command_lines_of_outputs_are_those_of_the_program() -> None:
    """Each flag is one of its command, or of the dashboard."""
    parser = build_parser()
    parsers = {"": parser, **{name: sub for name, _, sub in subcommands(parser)}}
    for line in (line for output in OUTPUTS.values() for line in output.commands):
        words = line.partition(" -- ")[0].split()[1:]
        command = words[0] if words[0] in COMMANDS else ""
        flags = {name for group in flag_groups(parsers[command]) for flag in group.flags for name in flag.names}
        assert {word for word in words if word.startswith("-")} - {"-"} <= flags, line


def test_every_output_is_held_to_its_schema_by_a_test_that_runs_the_command() -> None:
    texts = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py"))
    held = {*re.findall(r'valid(?:_json)?\(\s*"([a-z-]+)"', texts), "explain", "explain-snapshot"}
    assert set(NAMES) - held == {"job"}  # a part of others, which refer to it


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_valid_and_describes_every_field(name: str) -> None:
    found = schema(name)
    Draft202012Validator.check_schema(found)
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert found["$id"] == f"urn:vramtop:json:{name}"
    assert found["title"]
    assert found["description"].endswith(".")
    for path, facts in fields(found):
        assert len(facts["description"]) > 4, path
        assert facts["description"].endswith("."), path
        if path.endswith("_bytes") and "integer" in json.dumps(facts):
            assert "byte" in facts["description"].lower(), path
        assert "None" not in facts["description"], path


@pytest.mark.parametrize("name", NAMES)
def test_what_may_be_null_says_when(name: str) -> None:
    for path, facts in fields(schema(name)):
        kinds = [facts, *facts.get("anyOf", [])]
        if any("null" in str(each.get("type", "")) or None in each.get("enum", []) for each in kinds):
            assert "null" in facts["description"], path


def a_budget() -> dict[str, Any]:
    value = json.loads(json.dumps(estimate(Job(model=ModelSpec(id="gpt2")), method="formula").to_json()))
    return {**value, "notes": []}


def test_readers_may_meet_fields_that_they_do_not_know() -> None:
    value = a_budget() | {"moons": 3}
    Draft202012Validator(schema("estimate")).validate(value)
    with pytest.raises(AssertionError, match="moons"):
        require_valid("estimate", value)


def job_files() -> list[Any]:
    text = (SCHEMAS.parent / "job-file.md").read_text(encoding="utf-8")
    return [msgspec.toml.decode(block) for block in re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


def test_the_schema_of_a_job_file_takes_what_the_program_takes(tmp_path: Path) -> None:
    validator, files = Draft202012Validator(schema("job-file")), job_files()
    assert len(files) >= 2
    for file in files:
        validator.validate(file)
        refused = [
            {**file, "trianing": {}},
            {**file, "training": {"micro_btach": 1}},
            {**file, "training": {"micro_batch": 0}},
            {**file, "training": {"precision": "bf17"}},
        ]
        for number, wrong in enumerate(refused):
            assert not validator.is_valid(wrong)
            path = tmp_path / f"{number}.toml"
            path.write_text(tomlkit.dumps(wrong))
            with pytest.raises(InputError):
                load_job(path)
