"""Scripts whose own loops keep the model's outputs through the backward pass, and scripts that free them."""

import ast
import shlex
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.script.script_settings import kept_outputs

KEPT = "for batch in loader:\n    out = model(**batch)\n    loss = out.loss\n    loss.backward()\n"
SCRIPT = """
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("org/model")
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader([], batch_size=2):
    outputs = model(**batch)
    outputs.loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (KEPT, True),
        ("def train():\n" + "".join(f"    {line}\n" for line in KEPT.splitlines()), True),
        (KEPT.replace("loss.backward()", "accelerator.backward(loss)"), True),
        (KEPT.replace("out.loss", "loss_function(out.logits, batch)"), True),
        (KEPT.replace("    loss.backward()", "    del out\n    loss.backward()"), False),
        (KEPT.replace("out = model(**batch)\n    loss = out.loss", "loss = model(**batch).loss"), False),
        (
            "def compute(batch):\n    out = model(**batch)\n    return out.loss\nloss = compute(1)\nloss.backward()\n",
            False,
        ),
        ("out = model(batch)\nprint(out.loss)\n", False),
    ],
)
def test_a_variable_that_outlives_the_backward_pass(text: str, kept: bool) -> None:
    assert (kept_outputs(ast.parse(text), "train.py") is not None) is kept


@pytest.mark.parametrize(
    ("change", "kept"), [({}, True), ({"outputs.loss": "loss = outputs.loss; del outputs; loss"}, None)]
)
def test_the_job_of_a_script(tmp_path: Path, change: dict[str, str], kept: Any) -> None:
    text = SCRIPT
    for before, after in change.items():
        text = text.replace(before, after)
    (tmp_path / "train.py").write_text(text)
    reading = read_launch(shlex.split("python train.py"), environ={}, cwd=tmp_path, versions={})
    assert reading.value("training.keep_outputs") is kept
