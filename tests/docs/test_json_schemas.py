"""The published schemas of JSON: valid, complete, with every field described; and they refuse what is not described."""

import json
import re
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
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.load_and_save import load_job
from vramtop.estimator.job.settings import ModelSpec
from vramtop.tui.cli.main import COMMANDS, build_parser
from vramtop.tui.cli.parsing.command_parser import subcommands
from vramtop.tui.cli.parsing.flag_facts import flag_groups

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
