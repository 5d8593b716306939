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


def test_preference_training_by_trl_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"such as -- trl dpo --config x\.yaml"):
        of(tmp_path, "model_name_or_path: a/b\ndataset_name: d\nbeta: 0.1\n")


@pytest.mark.parametrize(
    ("line", "reference", "generates"),
    [
        ("num_generations: 4\nbeta: 0.1", True, True),
        ("desirable_weight: 1.0", True, False),
        ("packing: true", False, False),
    ],
)
def test_names_that_only_one_command_of_trl_has_tell_it(
    tmp_path: Path, line: str, reference: bool, generates: bool
) -> None:
    text = "model_name_or_path: gpt2\ndataset_name: d\nmax_length: 64\nmax_completion_length: 64\n"
    assert of(tmp_path, f"{text}{line}\n") == "TRL"
    job = read_config_file(tmp_path / "x.yaml", environ={}).job()
    assert (bool(job.other_models), job.rollout is not None) == (reference, generates)


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
