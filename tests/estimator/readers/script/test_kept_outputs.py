"""Scripts whose own loops keep the model's outputs or its gradients longer than needed, and others that free them."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.readers.launch_line import read_launch

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
    ("change", "kept"), [({}, True), ({"outputs.loss": "loss = outputs.loss; del outputs; loss"}, None)]
)
def test_the_job_of_a_script(tmp_path: Path, change: dict[str, str], kept: Any) -> None:
    text = SCRIPT
    for before, after in change.items():
        text = text.replace(before, after)
    (tmp_path / "train.py").write_text(text)
    reading = read_launch(shlex.split("python train.py"), environ={}, cwd=tmp_path, versions={})
    assert reading.value("training.keep_outputs") is kept


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ("", "optimizer.zero_grad()", False),
        ("", "optimizer.zero_grad(set_to_none=False)", True),
        ("optimizer.zero_grad()", "", True),
    ],
)
def test_gradients_that_are_there_while_the_model_runs_are_a_doubt(
    tmp_path: Path, before: str, after: str, *, kept: bool
) -> None:
    loss = "    outputs.loss.backward()\n"
    (tmp_path / "train.py").write_text(SCRIPT.replace(loss, f"    {before}\n{loss}") + f"    {after}\n")
    reading = read_launch(shlex.split("python train.py"), environ={}, cwd=tmp_path, versions={})
    assert ("gradients" in {each.component for each in reading.uncertainties}) == kept
    assert any("leaves the gradients of the step before" in each for each in reading.warnings) == kept


def test_a_loop_of_deepspeed_s_engine_is_a_loop_too(tmp_path: Path) -> None:
    engine = "engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config='ds.json')"
    (tmp_path / "train.py").write_text(
        "import deepspeed\nfrom transformers import AutoModelForCausalLM\n"
        f"model = AutoModelForCausalLM.from_pretrained('gpt2')\n{engine}\n"
        "for batch in loader:\n    out = engine(**batch)\n    engine.backward(out.loss)\n    engine.step()\n"
    )
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1}')
    reading = read_launch(["deepspeed", "--num_gpus", "1", "train.py"], environ={}, cwd=tmp_path)
    assert reading.value("training.keep_outputs") is True
