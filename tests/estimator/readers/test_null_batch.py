"""A batch size of null: no tool starts with it, so its default does not count and the user is asked."""

from pathlib import Path

import pytest

from vramtop.estimator.readers.config_file import read_config_file

FILES = {
    "axolotl": "base_model: gpt2\nmicro_batch_size: null\ngradient_accumulation_steps: 2\nsequence_len: 128\n"
    "datasets: [{path: x, type: alpaca}]\n",
    "llamafactory": "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: full\nper_device_train_batch_size: null\n"
    "cutoff_len: 128\ntemplate: default\n",
    "litgpt": "checkpoint_dir: checkpoints/openai-community/gpt2\n"
    "train: {global_batch_size: 4, micro_batch_size: null, max_seq_length: 128}\nprecision: bf16-true\n",
}


@pytest.mark.parametrize("tool", FILES)
def test_null_in_a_tools_file_is_named_and_the_batch_is_asked_for(tool: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(FILES[tool])
    reading = read_config_file(file, environ={})
    assert "training.micro_batch" in reading.missing
    assert "run.yaml" in reading.refused["training.micro_batch"]
    file.write_text(FILES[tool].replace("batch_size: null", "batch_size: 3"))
    assert read_config_file(file, environ={}).value("training.micro_batch") == 3
