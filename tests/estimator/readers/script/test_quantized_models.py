"""Scripts that adapt a quantized model: its preparation for training, and dropout before the adapters."""

from pathlib import Path

import pytest

from vramtop.estimator.job.settings import Lora
from vramtop.estimator.readers.launch_line import read_launch

SCRIPT = """\
import torch
from peft import *
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)
model = AutoModelForCausalLM.from_pretrained("gpt2", quantization_config=quantization, torch_dtype=torch.bfloat16)
PREPARE
model = get_peft_model(model, LoraConfig(r=8, target_modules=["c_attn"], lora_dropout=0.05))
args = TrainingArguments("out", per_device_train_batch_size=4, bf16=True)
Trainer(model=model, args=args, train_dataset=None).train()
"""


def lora_of(folder: Path, prepare: str) -> Lora:
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("PREPARE", prepare))
    found = read_launch(["python", str(script)], environ={}).job({"training.sequence_length": 512}).lora
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("prepare", "prepared"),
    [
        ("model = prepare_model_for_kbit_training(model)", True),
        ("", False),
        ("mine.change(model)", None),
        ("def prepare_model_for_kbit_training(model):\n    return model", None),
    ],
)
def test_preparation_and_dropout_are_read(tmp_path: Path, prepare: str, prepared: bool | None) -> None:
    lora = lora_of(tmp_path, prepare)
    assert (lora.kbit_preparation, lora.dropout, lora.quantization) == (prepared, 0.05, "nf4-double")


def test_bits_that_the_loading_is_given_itself_are_read(tmp_path: Path) -> None:
    given = "load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=True"
    (tmp_path / "train.py").write_text(SCRIPT.replace("quantization_config=quantization", given).replace("PREPARE", ""))
    reading = read_launch(["python", str(tmp_path / "train.py")], environ={}, versions={"transformers": "4.52"})
    assert reading.value("lora.quantization") == "nf4-double"
    assert not any("may add or change parts" in each for each in reading.warnings)


@pytest.mark.parametrize(("given", "doubted"), [("dequantize=True", False), ("", True)])
def test_weights_that_are_unpacked_as_they_are_loaded_are_not_quantized(
    tmp_path: Path, given: str, doubted: bool
) -> None:
    script = SCRIPT.replace(
        "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)", f"Mxfp4Config({given})"
    )
    (tmp_path / "train.py").write_text(script.replace("PREPARE", ""))
    reading = read_launch(["python", str(tmp_path / "train.py")], environ={})
    assert any(each.unless == "lora.quantization" for each in reading.uncertainties) is doubted
    assert reading.value("lora.quantization") in (None, "none")


@pytest.mark.parametrize(
    "given",
    [
        "SFTTrainer(model='gpt2', args=SFTConfig('o', bf16=True, {}), train_dataset=d, peft_config=P)",
        "SFTTrainer(model='gpt2', args=SFTConfig('o', bf16=True), {}, train_dataset=d, peft_config=P)",
    ],
)
def test_a_trainer_that_loads_the_model_is_told_how(tmp_path: Path, given: str) -> None:
    table = (
        "model_init_kwargs=dict(quantization_config=Q, attn_implementation='eager', "
        "device_map={'': PartialState().process_index})"
    )
    lines = (
        "from transformers import *\nfrom trl import *\nfrom peft import *\nfrom accelerate import PartialState",
        "Q, P = BitsAndBytesConfig(load_in_4bit=True), LoraConfig(r=4, target_modules=['c_attn'])",
        f"{given.format(table)}.train()",
    )
    (tmp_path / "train.py").write_text("\n".join(lines))
    reading = read_launch(["python", str(tmp_path / "train.py")], environ={})
    assert (reading.value("lora.quantization"), reading.value("model.attention")) == ("nf4", "eager")
    assert not any(each.unless is None for each in reading.uncertainties)
