"""What FSDP gathers at once under the Trainer and accelerate, by version, policy and adapters."""

import shlex
from pathlib import Path

import pytest

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

TRAINER = """from transformers import *
from peft import *
model = AutoModelForCausalLM.from_pretrained("gpt2")
{adapters}
args = TrainingArguments(output_dir="o", bf16=True, per_device_train_batch_size=1, fsdp={fsdp})
Trainer(model=model, args=args, train_dataset=data).train()
"""
LOOP = """import torch
from accelerate import Accelerator
from peft import *
from transformers import AutoModelForCausalLM
accelerator = Accelerator()
model = AutoModelForCausalLM.from_pretrained("gpt2")
{adapters}
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for batch in loader:
    accelerator.backward(model(batch).loss)
    optimizer.step()
"""
ADAPTERS = "model = get_peft_model(model, LoraConfig(r=8, target_modules=['c_attn']))"
OLD, MIDDLE, NEW = "4.57.1", "5.2.0", "5.23.0"


def read(folder: Path, line: str, version: str = NEW) -> JobReading:
    return read_launch(shlex.split(line), environ={}, cwd=folder, versions={"transformers": version})


@pytest.mark.parametrize(
    ("version", "fsdp", "adapters", "strategy", "units"),
    [
        (OLD, "'full_shard'", False, "fsdp1", "model"),
        (OLD, "True", False, "fsdp1", "model"),
        (OLD, "'full_shard auto_wrap'", False, "fsdp1", None),
        (OLD, "'full_shard'", True, "fsdp1", None),
        (MIDDLE, "'full_shard'", False, "fsdp1", "model"),
        (NEW, "'full_shard'", False, "fsdp2", None),
        (NEW, "True, fsdp_config={'auto_wrap_policy': 'NO_WRAP'}", False, "fsdp2", "model"),
        (OLD, "'full_shard', fsdp_config={'auto_wrap_policy': 'TRANSFORMER_BASED_WRAP'}", False, "fsdp1", "model"),
        (NEW, "True", True, "fsdp2", None),
    ],
)
def test_units_under_the_trainer(
    tmp_path: Path, version: str, fsdp: str, adapters: bool, strategy: str, units: str | None
) -> None:
    (tmp_path / "t.py").write_text(TRAINER.format(fsdp=fsdp, adapters=ADAPTERS if adapters else ""))
    reading = read(tmp_path, "torchrun --nproc_per_node 4 t.py", version)
    assert (reading.value("parallel.strategy"), reading.value("parallel.fsdp_units")) == (strategy, units)


@pytest.mark.parametrize(
    ("name", "classes"), [("LlamaDecoderLayer", None), ("MixtralSparseMoeBlock", ["MixtralSparseMoeBlock"])]
)
def test_a_part_of_a_block_is_no_block(tmp_path: Path, name: str, classes: list[str] | None) -> None:
    (tmp_path / "t.py").write_text(LOOP.format(adapters=""))
    flags = (
        f"--fsdp_version 1 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --fsdp_transformer_layer_cls_to_wrap {name}"
    )
    reading = read(tmp_path, f"accelerate launch --use_fsdp --num_processes 4 {flags} t.py")
    assert reading.value("parallel.fsdp_wrap_classes") == classes


def test_what_fsdp1_gathers_ahead(tmp_path: Path) -> None:
    """accelerate passes no prefetching unless it is told to."""
    (tmp_path / "t.py").write_text(LOOP.format(adapters=""))
    line = "accelerate launch --use_fsdp --num_processes 4 --fsdp_version 1 FLAGS t.py"
    keys = ("parallel.fsdp_backward_prefetch", "parallel.limit_all_gathers")
    for flags, found in (("", ("none", None)), ("--fsdp_backward_prefetch BACKWARD_POST", ("post", None))):
        reading = read(tmp_path, line.replace("FLAGS", flags))
        assert tuple(reading.value(key) for key in keys) == found


@pytest.mark.parametrize(("flags", "found"), [("", None), ("--fsdp_use_orig_params false", False)])
def test_whether_fsdp1_keeps_the_models_parameters(tmp_path: Path, flags: str, found: bool | None) -> None:
    (tmp_path / "t.py").write_text(LOOP.format(adapters=""))
    line = f"accelerate launch --use_fsdp --fsdp_version 1 --num_processes 4 {flags} t.py"
    assert read(tmp_path, line).value("parallel.original_parameters") == found


@pytest.mark.parametrize(("storage", "unsure"), [("", "more"), (", bnb_4bit_quant_storage=torch.bfloat16", "no")])
def test_four_bit_weights_that_fsdp2_may_not_shard(tmp_path: Path, storage: str, unsure: str) -> None:
    text = "import torch\n" + TRAINER.format(fsdp="True", adapters=ADAPTERS)
    config = f"quantization_config=BitsAndBytesConfig(load_in_4bit=True{storage})"
    (tmp_path / "t.py").write_text(text.replace('"gpt2"', f'"gpt2", {config}'))
    reading = read(tmp_path, "torchrun --nproc_per_node 4 t.py")
    assert reading.job().unsure.communication == unsure
    assert any("keeps 4-bit weights whole" in each for each in reading.warnings) == (unsure == "more")


def test_a_table_of_which_one_value_is_not_known(tmp_path: Path) -> None:
    table = "{'min_num_params': int(open('n').read()), 'activation_checkpointing': True}"
    fsdp = f"'full_shard auto_wrap', fsdp_config={table}"
    (tmp_path / "t.py").write_text(TRAINER.format(fsdp=fsdp, adapters=""))
    reading = read(tmp_path, "torchrun --nproc_per_node 4 t.py", OLD)
    assert reading.value("training.activation_checkpointing") == "full"
    assert any("min_num_params of fsdp_config" in each for each in reading.warnings)


@pytest.mark.parametrize(("pin", "precision"), [("accelerate==0.29.3", "bf16"), ("accelerate==0.30.0", "bf16-mixed")])
def test_fsdp1_keeps_half_weights_before_accelerate_0_30(tmp_path: Path, pin: str, precision: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"{pin}\n")
    text = TRAINER.format(fsdp="'full_shard auto_wrap'", adapters="")
    (tmp_path / "t.py").write_text(text.replace('"gpt2"', '"gpt2", torch_dtype="bfloat16"'))
    reading = read(tmp_path, "torchrun --nproc_per_node 4 t.py", OLD)
    assert reading.value("training.precision") == precision
