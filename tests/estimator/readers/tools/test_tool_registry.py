"""A training tool is one module: its launch lines, configuration files and key names follow from its ``TOOL``."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from vramtop.estimator.advice.setting_edits import tool_edits
from vramtop.estimator.job.job import Inference, Job, Lora, ModelSpec, Parallel, Training
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.readers import tools
from vramtop.estimator.readers.config_file import read_config_file, tool_of_file
from vramtop.estimator.readers.launch_line import read_launch, tool_of_line
from vramtop.estimator.readers.tools import tool_registry
from vramtop.estimator.readers.tools.tool_registry import TRAINER_LIBRARIES, all_tools, parse_launch, table_of_tool

MADE_UP_TOOL = '''
"""brewer: a made-up training tool."""

import msgspec
from vramtop.estimator.readers.program.launch import ToolCommand
from vramtop.estimator.readers.arguments.table import Library, record_arguments
from vramtop.estimator.readers.tools.shared.settings_files import tool_settings
from vramtop.estimator.readers.tools.shared.tool import Tool

TABLE = msgspec.toml.decode("""
title = "brewer"
[record.step]
"training.micro_batch" = { from = ["kettle.batch"], kind = "count" }
"training.sequence_length" = { from = ["kettle.length"], kind = "count", default = 512 }
"training.precision" = { from = ["blend"], words = { strong = "fp32", mild = "bf16" }, default = "mild" }
[write]
"training.precision" = { name = "blend", values = { fp32 = "strong", bf16 = "mild" } }
""", type=Library)


def read(program):
    settings = tool_settings(program, "recipe")
    model = settings.find("leaves")
    program.findings.record_from(model, "model.id", model.value)
    record_arguments(TABLE, "step", settings, program.findings)
    return program.findings.build()


TOOL = Tool(
    name="brewer",
    programs=r"(.*/)?brewer",
    commands=(ToolCommand(name="brewer", subcommands=frozenset({"brew"})),),
    keys=(("leaves",),),
    read=read,
    table=lambda: TABLE,
)
'''
TABLES = {"model": ModelSpec, "training": Training, "lora": Lora, "inference": Inference, "parallel": Parallel}
RECIPE = "leaves: org/model\nkettle: {batch: 3}\n"


@pytest.fixture
def made_up_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add a module to the folder of the tools; no other file refers to it."""
    folder = tmp_path / "more_tools"
    folder.mkdir()
    (folder / "made_up_brewer.py").write_text(MADE_UP_TOOL)
    monkeypatch.setattr(tools, "__path__", [*tools.__path__, str(folder)])
    all_tools.cache_clear()
    yield
    all_tools.cache_clear()


@pytest.mark.usefixtures("made_up_tool")
def test_a_new_tool_needs_only_one_module(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    line = shlex.split("env A=1 brewer brew --recipe recipe.yaml --kettle.length 1024")
    assert (tool_of_line(line), tool_of_file(recipe)) == ("brewer", "brewer")
    assert parse_launch(line).launchers == ("tool",)

    from_line = read_launch(line, environ={}, cwd=tmp_path, versions={})
    job = from_line.job()
    assert (job.model.id, job.training.micro_batch, job.training.sequence_length) == ("org/model", 3, 1024)
    assert from_line.evidence()["training.precision"] == "brewer's default blend"

    from_file = read_config_file(recipe, environ={})
    assert (from_file.job().training.sequence_length, from_file.missing) == (512, ())

    edits = tool_edits(
        from_line, job, {"training.micro_batch": 2, "training.precision": "fp32"}, tool="brewer", place="recipe.yaml"
    )
    assert [(edit.setting, edit.new) for edit in edits] == [("kettle.batch", "2"), ("blend", "strong")]


def test_without_its_module_the_tool_is_unknown() -> None:
    assert not any(tool.is_config({"leaves": "org/model"}) for tool in all_tools())
    assert parse_launch(["brewer", "brew"]).program_name is None
    assert table_of_tool("brewer").write == {}


def test_every_module_and_room_of_the_folder_is_a_tool() -> None:
    folder = Path(tool_registry.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "shared", "tool_registry"}
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")} - {"shared"}
    prefix = f"{tools.__name__}."
    assert {tool.read.__module__.removeprefix(prefix).partition(".")[0] for tool in all_tools()} == modules | rooms


def test_names_commands_and_configurations_belong_to_one_tool_each() -> None:
    names = [tool.name for tool in all_tools()]
    commands = [command.name for tool in all_tools() for command in tool.commands]
    assert len(set(names)) == len(names)
    assert len(set(commands)) == len(commands)


@pytest.mark.parametrize("name", [*(tool.name for tool in all_tools()), *TRAINER_LIBRARIES])
def test_edit_names_map_to_keys_and_values_of_a_job(name: str) -> None:
    for key, setting in table_of_tool(name).write.items():
        table, _, field = key.partition(".")
        assert field in TABLES[table].__struct_fields__
        for word in setting.values or ():
            value = {"true": True, "false": False}.get(word, word)
            assert with_changes(Job(), {key: value}, where="the test") is not None
