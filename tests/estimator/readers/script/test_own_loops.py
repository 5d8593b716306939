"""Training loops of a script's own: what they keep between steps is one doubt, whatever they do."""

from pathlib import Path

import pytest
from reading import read_script as read

LOOP = """
import deepspeed, torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
optimizer = torch.optim.AdamW(model.parameters())
for step, batch in enumerate(DataLoader([], batch_size=2)):
    {step}
    optimizer.step()
"""
KEEPS = "training.keep_outputs"


@pytest.mark.parametrize(
    "step",
    [
        "model(**batch).loss.backward()",
        "out = model(**batch)\n    out.loss.backward()",
        "optimizer.zero_grad(set_to_none=False)\n    model(**batch).loss.backward()",
        "(model(**batch['good']).loss - model(**batch['bad']).loss).backward()",
        "model(torch.cat((batch['chosen'], batch['rejected']))).loss.backward()",
        "model(batch[start:start + 4]).logits.softmax(-1).mean().backward(retain_graph=True)",
        "model(**batch).loss.backward()\n    if step % 4:\n        continue",
        "engine.backward(engine(**batch).loss)",
    ],
)
def test_what_a_loop_keeps_is_one_doubt(tmp_path: Path, step: str) -> None:
    engine = "engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={})\nfor step"
    text = LOOP.format(step=step).replace("for step", engine, 1 if "engine" in step else 0)
    reading = read(tmp_path, text)
    assert [each for each in reading.warnings if "training loop of its own; what it keeps between steps" in each]
    found = {(each.component, each.direction) for each in reading.uncertainties if each.unless == KEEPS}
    assert found == {("activations", "either"), ("logits", "either"), ("gradients", "more")}
    assert reading.value(KEEPS) is True
    assert reading.value("training.micro_batch") == 2
    known = read(tmp_path, text, given={KEEPS: False})
    assert not any("what it keeps between steps" in each for each in known.warnings)


def test_the_loop_of_a_trainer_is_known(tmp_path: Path) -> None:
    text = LOOP.partition("for step")[0]
    text += (
        "Trainer(model, TrainingArguments('o', per_device_train_batch_size=2), optimizers=(optimizer, None)).train()"
    )
    reading = read(tmp_path, text)
    assert reading.uncertainties == ()
    assert reading.value(KEEPS) is None


@pytest.mark.parametrize("line", ["model(**batch, output_attentions=True)", "torch.autograd.grad(a, b)"])
def test_what_a_step_computes_besides_is_named(tmp_path: Path, line: str) -> None:
    reading = read(tmp_path, LOOP.format(step=f"{line}.loss.backward()"), given={KEEPS: True})
    assert any(each.component == "activations" for each in reading.uncertainties)
