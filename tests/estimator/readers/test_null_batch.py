"""A batch size of null: no tool starts with it, so its default does not count and the user is asked."""

from pathlib import Path

import pytest

from vramtop.estimator.readers.config_file import read_config_file
from vramtop.estimator.readers.launch_line import read_launch

FILES = {
    "axolotl": "base_model: gpt2\nmicro_batch_size: null\ngradient_accumulation_steps: 2\nsequence_len: 128\n"
    "datasets: [{path: x, type: alpaca}]\n",
    "llamafactory": "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: full\nper_device_train_batch_size: null\n"
    "cutoff_len: 128\ntemplate: default\n",
    "litgpt": "checkpoint_dir: checkpoints/openai-community/gpt2\n"
    "train: {global_batch_size: 4, micro_batch_size: null, max_seq_length: 128}\nprecision: bf16-true\n",
}
SCRIPT = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("gpt2")
args = TrainingArguments(per_device_train_batch_size={batch}, output_dir="x")
Trainer(model=model, args=args, train_dataset=None).train()
"""


@pytest.mark.parametrize("tool", FILES)
def test_null_in_a_tools_file_is_named_and_the_batch_is_asked_for(tool: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(FILES[tool])
    reading = read_config_file(file, environ={})
    assert "training.micro_batch" in reading.missing
    assert "run.yaml" in reading.refused["training.micro_batch"]
    file.write_text(FILES[tool].replace("batch_size: null", "batch_size: 3"))
    assert read_config_file(file, environ={}).value("training.micro_batch") == 3


def test_none_in_a_script_is_named_and_the_batch_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(batch="None"))
    reading = read_launch(["python", "train.py"], environ={}, cwd=tmp_path)
    assert "training.micro_batch" in reading.missing
    assert "train.py line 4" in reading.refused["training.micro_batch"]
    (tmp_path / "train.py").write_text(SCRIPT.format(batch=3))
    assert read_launch(["python", "train.py"], environ={}, cwd=tmp_path).value("training.micro_batch") == 3
