"""Whether batches differ in length, as the data settings of each tool and script decide it; and dropout by default."""

import shlex
from pathlib import Path

import pytest

from vramtop.estimator.readers.config_file import read_config_file
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

AXOLOTL = "base_model: org/model\nsequence_len: 1024\nmicro_batch_size: 1\n"
TORCHTUNE = "model:\n  _component_: torchtune.models.llama3_1.lora_llama3_1_8b\n  lora_dropout: 0.1\nbatch_size: 1\n"
SCRIPT = """from transformers import *
from elsewhere import Options
HfArgumentParser((TrainingArguments, Options)).parse_args_into_dataclasses()
tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2")
{}
args = TrainingArguments(output_dir="o", per_device_train_batch_size=1)
Trainer(model=model, args=args, train_dataset=data).train()
"""


def read(folder: Path, line: str, **files: str) -> JobReading:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return read_launch(shlex.split(line), environ={}, cwd=folder, versions={"transformers": "5.23.0"})


@pytest.mark.parametrize(
    ("line", "vary"),
    [
        ("axolotl train a.yml", True),
        ("axolotl train a.yml --sample-packing true", False),
        ("axolotl train a.yml --sample-packing true --pad-to-sequence-len false", True),
        ("axolotl train a.yml --pad-to-sequence-len true", False),
        ("swift sft --model org/model", True),
        ("swift sft --model org/model --packing true", False),
        ("unsloth train --model org/model --max-seq-length 512", True),
        ("unsloth train --model org/model --max-seq-length 512 --packing true", False),
        ("litgpt finetune_lora org/model", True),
        ("litgpt pretrain org/model", False),
        ("tune run lora_finetune_single_device --config t.yaml", True),
        ("tune run lora_finetune_single_device --config t.yaml dataset.packed=True", False),
        ("llamafactory-cli train --model_name_or_path org/model --stage sft --packing true", False),
        ("trl sft --model_name_or_path org/model", True),
        ("torchrun t.py", None),
        ("torchrun t.py --group_by_length true", True),
        ("torchrun t.py --group_by_length false --padding_free true", True),
        ("torchrun t.py --pad_to_max_length true", False),
        ("torchrun t.py --train_sampling_strategy group_by_length", True),
    ],
)
def test_tools(tmp_path: Path, line: str, vary: bool | None) -> None:
    reading = read(tmp_path, line, a_yml=AXOLOTL, t_yaml=TORCHTUNE, t_py=SCRIPT.format(""))
    assert reading.value("training.varying_lengths") is vary


def test_dropout_of_adapters(tmp_path: Path) -> None:
    """TRL's commands have 0.05 by default; torchtune's and LitGPT's own settings count."""
    trl = "trl sft --model_name_or_path org/model --use_peft --max_length 512"
    assert read(tmp_path, trl).value("lora.dropout") == 0.05
    assert read(tmp_path, f"{trl} --lora_dropout 0").value("lora.dropout") == 0
    (tmp_path / "t.yaml").write_text(TORCHTUNE)
    assert read_config_file(tmp_path / "t.yaml", environ={}).value("lora.dropout") == 0.1
    lit = "litgpt finetune_lora org/model --lora_dropout 0"
    assert read(tmp_path, lit).value("lora.dropout") == 0
