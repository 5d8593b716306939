"""Which of Liger-Kernel's kernels a launch line, a file or a script asks for."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.job.settings import Training
from vramtop.estimator.readers.launch_line import read_launch

ALL = ["norm", "mlp", "rope"]
PLUGINS = "plugins: [axolotl.integrations.liger.LigerPlugin{}]\n"
CUT = ", axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
SCRIPT = """
from liger_kernel.transformers import apply_liger_kernel_to_llama
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
apply_liger_kernel_to_llama({})
model = AutoModelForCausalLM.from_pretrained("org/model")
Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=1)).train()
"""


def training_of(line: str, folder: Path) -> tuple[Any, str]:
    reading = read_launch(shlex.split(line), environ={}, cwd=folder, versions={"transformers": "5.2.0", "trl": "1.6.0"})
    fields = {name: reading.value(f"training.{name}") for name in ("fused_kernels", "loss")}
    return fields["fused_kernels"], fields["loss"] or Training().loss


@pytest.mark.parametrize(
    ("flags", "kernels", "loss"),
    [
        ("", None, "full"),
        ("--use_liger_kernel", ALL, "fused-linear"),
        ("""--use_liger_kernel --liger_kernel_config '{"rms_norm": false}'""", ["mlp", "rope"], "fused-linear"),
        (
            """--use_liger_kernel --liger_kernel_config '{"cross_entropy": true, "swiglu": false}'""",
            ["norm", "rope", "cross-entropy"],
            "full",
        ),
    ],
)
def test_the_trainers_setting(tmp_path: Path, flags: str, kernels: Any, loss: str) -> None:
    line = f"trl sft --model_name_or_path gpt2 --per_device_train_batch_size 2 {flags}"
    assert training_of(line, tmp_path) == (kernels, loss)


@pytest.mark.parametrize(
    ("text", "kernels", "loss"),
    [
        (PLUGINS.format("") + "liger_rms_norm: true\nliger_fused_linear_cross_entropy: true", ["norm"], "fused-linear"),
        (PLUGINS.format("") + "liger_glu_activation: true\nliger_rope: true", ["mlp", "rope"], "full"),
        (PLUGINS.format(CUT) + "liger_rms_norm: true", ["norm"], "fused-linear"),
        ("liger_rms_norm: true", None, "full"),
    ],
)
def test_axolotl_has_each_kernel_off_unless_stated(tmp_path: Path, text: str, kernels: Any, loss: str) -> None:
    (tmp_path / "cfg.yml").write_text(f"base_model: org/model\nmicro_batch_size: 1\nsequence_len: 512\n{text}\n")
    assert training_of("axolotl train cfg.yml", tmp_path) == (kernels, loss)


LINES = SCRIPT.splitlines()
LATE = "\n".join([*LINES[:3], LINES[4], LINES[3], LINES[5]])


@pytest.mark.parametrize(
    ("script", "arguments", "kernels", "loss"),
    [
        (SCRIPT, "", ALL, "fused-linear"),
        (SCRIPT, "rms_norm=False", ["mlp", "rope"], "fused-linear"),
        (SCRIPT, "fused_linear_cross_entropy=False, cross_entropy=True", [*ALL, "cross-entropy"], "full"),
        (LATE, "", ["rope"], "fused-linear"),  # the classes are replaced, not what was made of them
        (LATE, "model=model", ALL, "fused-linear"),
    ],
)
def test_a_script_that_patches_its_model(tmp_path: Path, script: str, arguments: str, kernels: Any, loss: str) -> None:
    (tmp_path / "train.py").write_text(script.format(arguments))
    assert training_of("python train.py", tmp_path) == (kernels, loss)
