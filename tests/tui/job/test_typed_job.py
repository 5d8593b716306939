"""A job as the user types it in the dashboard: the same words as after ``vramtop fit``."""

from pathlib import Path

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.tui.job.typed_job import load_from_text


@pytest.mark.parametrize(
    ("text", "ranks", "gpu_type", "micro_batch"),
    [
        ("gpt2 --batch-size 4", 1, None, 4),
        ("vramtop fit gpt2 --batch_size 4 --fsdp --gpu-type 8xh100", 8, "h100-80gb", 4),
        ("$ gpt2 --gpus 4 --ddp --card a100-80gb", 4, "a100-80gb", 1),
        ("gpt2 --gpu 2xh100 --zero3 -b 4", 2, "h100-80gb", 4),
        ("gpt2 --set training.micro_batch=2", 1, None, 2),
        ("trl sft --model_name_or_path gpt2 --dataset_name x --per_device_train_batch_size 3", 1, None, 3),
        ("fit --gpu-type h100 -- trl sft --model_name_or_path gpt2 --per_device_train_batch_size 3", 1, "h100-80gb", 3),
    ],
)
def test_words_of_vramtop_fit_and_launch_lines(text: str, ranks: int, gpu_type: str | None, micro_batch: int) -> None:
    loaded = load_from_text(text)
    assert loaded.job.model.id == "gpt2"
    assert loaded.job.parallel.world_size == ranks
    assert loaded.job.training.micro_batch == micro_batch
    assert loaded.job.target.gpu == gpu_type


def test_settings_before_a_launch_line_are_not_taken_for_defaults() -> None:
    loaded = load_from_text("vramtop fit --batch-size 4 --set training.sequence_length=512 -- trl sft --model gpt2")
    given = {key: origin for key, origin in loaded.origins.items() if origin == "as you gave it"}
    assert given.keys() == {"training.micro_batch", "training.sequence_length"}


@pytest.mark.parametrize(
    ("flags", "attention"), [("", "eager"), ("--sdpa ", "sdpa"), ("--set software.torch=2.4 ", "eager")]
)
def test_attention_is_that_of_the_stated_versions(flags: str, attention: str) -> None:
    loaded = load_from_text(f"vramtop fit gpt2 {flags}--set software.transformers=4.35")
    assert loaded.job.model.attention == attention
    assert load_from_text(f"vramtop fit gpt2 {flags}--set software.transformers=4.36").job.model.attention == "sdpa"


def test_a_job_file_with_a_space_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "my job.toml"
    path.write_text('[model]\nid = "gpt2"\n')
    for text in (str(path), f"'{path}' --batch-size 2"):
        assert load_from_text(text).file == path


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "enter a job file"),
        ("vramtop fit", "enter a job file"),
        ("gpt2 'x", "a quotation mark is missing"),
        ("gpt2 --qlroa", "jobs have no such setting: --qlroa"),
        ("gpt2 --gpus 0", "0 is not a valid number of GPUs"),
        ("gpt2 --gpu-type 0xh100", "0 is not a valid number of GPUs"),
        ("gpt2 --gpu 0", "--gpu 0: give a card, such as h100"),
        ("no-job.toml", "no-job.toml: no such file"),
        ("nonesuch-9000", "no model"),
        ("echo hello world", "starts no Python script"),
    ],
)
def test_mistakes_are_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        load_from_text(text)
