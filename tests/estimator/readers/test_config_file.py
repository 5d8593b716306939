"""Configuration files without a launch line: what they were written for, and what a file alone leaves open."""

from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.readers.config_file import read_config_file, tool_of_file
from vramtop.estimator.readers.source.evidence import JobReading

WORKER = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
AXOLOTL = "base_model: org/model\nsequence_len: 1024\nmicro_batch_size: 3\n"


def values(reading: JobReading, *keys: str) -> tuple[Any, ...]:
    return tuple(reading.value(key) for key in keys)


def test_an_accelerate_file_alone_gives_the_sharding(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 2\n"
    )
    reading = read_config_file(tmp_path / "acc.yaml", environ={})
    assert values(reading, "parallel.strategy", "parallel.data_shard") == ("fsdp2", 2)
    assert set(reading.missing) == {"model.id", "training.micro_batch", "training.sequence_length"}


def test_a_deepspeed_file_alone(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "bf16": {"enabled": true},'
        ' "train_micro_batch_size_per_gpu": 2}'
    )
    reading = read_config_file(tmp_path / "ds.json", environ={})
    assert values(reading, "parallel.strategy", "parallel.cpu_offload", "training.micro_batch") == (
        ("zero3", "optimizer", 2)
    )


def test_a_file_of_no_known_tool_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("colour: red\n")
    with pytest.raises(InputError, match=r"x\.yaml: not a known configuration"):
        read_config_file(tmp_path / "x.yaml", environ={})


def test_the_environment_of_vramtop_is_not_used_for_the_job(tmp_path: Path) -> None:
    (tmp_path / "cfg.yml").write_text(AXOLOTL)
    reading = read_config_file(tmp_path / "cfg.yml", environ=WORKER | {"ACCELERATE_USE_FSDP": "true"})
    assert values(reading, "parallel.strategy", "parallel.data_shard") == ("none", None)


def test_an_unknown_memory_setting_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "cfg.yml").write_text(AXOLOTL + "relora_cpu_offload: true\nval_set_size: 0.1\n")
    warnings = read_config_file(tmp_path / "cfg.yml", environ={}).warnings
    assert warnings == ("cfg.yml: relora_cpu_offload may change the memory and is not counted.",)


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
