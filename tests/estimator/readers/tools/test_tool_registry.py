"""A training tool is one module: its launch lines, configuration files and key names follow from its ``TOOL``."""

from pathlib import Path

import pytest

from vramtop.estimator.job.job import Inference, Job, Lora, ModelSpec, Parallel, Training
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.readers import tools
from vramtop.estimator.readers.tools import tool_registry
from vramtop.estimator.readers.tools.tool_registry import TRAINER_LIBRARIES, all_tools, table_of_tool

TABLES = {"model": ModelSpec, "training": Training, "lora": Lora, "inference": Inference, "parallel": Parallel}


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
