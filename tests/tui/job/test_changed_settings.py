import shlex

import pytest

from vramtop.estimator.job.job import Job, Target
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.job.settings import Lora, ModelSpec, Parallel, Training
from vramtop.tui.cli.main import build_parser
from vramtop.tui.job.changed_settings import changed_settings_text
from vramtop.tui.job.load_job import load_from_options
from vramtop.tui.job.typed_job import load_from_text

MODEL = ModelSpec(id="meta-llama/Llama-3.1-8B")
"""In the words of the command line, which must read them as the same job."""


def read_back(command: str) -> Job:
    words = shlex.split(command.splitlines()[0])
    assert words[:2] == ["vramtop", "fit"]
    before, launch = (
        (words[1 : words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words[1:], None)
    )
    return load_from_options(build_parser().parse_args(before), launch).job


@pytest.mark.parametrize(
    "job",
    [
        Job(model=MODEL),
        Job(model=MODEL, training=Training(micro_batch=4, compile=True, optimizer="adamw-8bit")),
        Job(model=MODEL, lora=Lora(rank=8, targets=["q_proj", "v_proj"], quantization="nf4")),
        Job(model=ModelSpec(id="gpt2", trust_remote_code=True), parallel=Parallel(strategy="fsdp2", data_shard=8)),
    ],
)
def test_typed_settings_become_a_command_for_the_same_job(job):
    assert read_back(changed_settings_text(job, None, "")) == job


def test_the_command_has_the_gpu_type_and_number_of_gpus():
    job = Job(model=MODEL, target=Target(gpu="h100-80gb"))
    assert changed_settings_text(job, None, "", gpus=4).endswith("--gpu-type h100-80gb --gpus 4")


def test_only_changed_settings_of_a_job_file_are_listed(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('[model]\nid = "gpt2"\n[training]\nmicro_batch = 8\nprecision = "bf16"\n')
    source = load_from_text(str(path))
    job = with_changes(source.job, {"training.micro_batch": 2})
    text = changed_settings_text(job, source, str(path))
    assert text == f"vramtop fit {path} --micro-batch 2"
    assert read_back(text) == job


def test_changes_to_a_launch_line_are_listed(in_folder):
    (in_folder / "train.py").write_text("from transformers import Trainer\n")
    line = "python train.py --model_name_or_path gpt2 --per_device_train_batch_size 4 --max_length 512 --output_dir out"
    source = load_from_text(line)
    job = with_changes(source.job, {"training.micro_batch": 2, "training.sequence_length": 256})
    text = changed_settings_text(job, source, line)
    assert "--per_device_train_batch_size 4 -> 2" in text
    assert text.splitlines()[0].endswith(f"-- {line}")
    assert read_back(text) == job


def test_a_missing_setting_is_listed_even_with_its_default_value(tmp_path):
    path = tmp_path / "sft.yaml"
    path.write_text("model_name_or_path: gpt2\noutput_dir: out\nper_device_train_batch_size: 2\n")
    source = load_from_text(str(path))
    assert "training.sequence_length" in source.missing
    assert "--sequence-length 2048" in changed_settings_text(source.job, source, str(path))
