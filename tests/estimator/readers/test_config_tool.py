"""What a configuration file was written for, by its names."""

from pathlib import Path

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.readers.config_file import read_config_file, tool_of_file


def of(folder: Path, text: str) -> str:
    (folder / "x.yaml").write_text(text)
    return tool_of_file(folder / "x.yaml")


def test_names_of_several_tools_are_no_guess(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="may be a configuration of axolotl or LLaMA-Factory"):
        of(tmp_path, "base_model: a/b\nmodel_name_or_path: a/b\ncutoff_len: 12\n")


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("model_name_or_path: a/b\ndataset_name: d\nnum_generations: 4\n", "trl grpo"),
        ("model_name_or_path: a/b\ndataset_name: d\nbeta: 0.1\n", "trl dpo"),
        ("model_name_or_path: a/b\ndataset_name: d\ndesirable_weight: 1.0\n", "trl kto"),
    ],
)
def test_other_commands_of_trl_are_asked_for(tmp_path: Path, text: str, command: str) -> None:
    with pytest.raises(InputError, match=f"such as -- {command} --config x.yaml"):
        of(tmp_path, text)


def test_what_may_be_any_command_of_trl_widens_the_range(tmp_path: Path) -> None:
    text = "model_name_or_path: gpt2\ndataset_name: d\n"
    assert of(tmp_path, text) == "TRL"
    assert read_config_file(tmp_path / "x.yaml", environ={}).job().unsure.weights == "more"
    of(tmp_path, f"{text}packing: true\n")
    assert read_config_file(tmp_path / "x.yaml", environ={}).job().unsure.weights == "no"


def test_plain_arguments(tmp_path: Path) -> None:
    assert of(tmp_path, "model_name_or_path: gpt2\nper_device_train_batch_size: 2\noutput_dir: o\n") == "transformers"
    assert of(tmp_path, "zero_optimization: {stage: 2}\n") == "DeepSpeed"
    assert of(tmp_path, "distributed_type: FSDP\n") == "accelerate"
