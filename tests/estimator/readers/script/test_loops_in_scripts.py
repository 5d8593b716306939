"""Loops of scripts: accumulation, what loops over unknown data fill, and adapters that were saved before."""

from pathlib import Path
from typing import Any

import pytest
from reading import read_script

from vramtop.estimator.readers.source.evidence import JobReading

HEAD = """import argparse, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoConfig
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
"""
TRAIN = "opt = torch.optim.AdamW(model.parameters())\nfor step, b in enumerate(loader):\n    loss = model(b).loss\n"
TRAIN += "    loss.backward()\n"


VERSIONS = {"transformers": "5.23.0", "torch": "2.13.0", "peft": "0.21.2"}


def read(folder: Path, script: str) -> JobReading:
    return read_script(folder, HEAD + script, versions=VERSIONS)


@pytest.mark.parametrize(
    ("lines", "vocabulary"),
    [
        ("vocab = []\nfor w in words():\n    vocab.append(w)\n", None),
        ("vocab = {'<pad>': 0}\nfor w in words():\n    vocab[w] = len(vocab)\n", None),
        ("vocab = set()\nwhile more():\n    vocab.add(next(it))\nvocab = list(vocab)\n", None),
        ("vocab = []\nfor w in words():\n    vocab.append(w)\nvocab = [w.lower() for w in vocab]\n", None),
        ("vocab = []\nfor w in words():\n    if len(w) > 3:\n        vocab.append(w)\n", None),
        ("vocab = {}\nif words():\n    vocab['a'] = 1\n", None),
        ("class C:\n    v = 1\nc = C()\nc.l = []\nif words():\n    c.l.append(1)\nvocab = c.l\n", None),
        ("vocab = []\nfor w in range(5):\n    vocab.append(w)\n", None),
        ("vocab = ['a', 'b', 'c']\n", 3),
    ],
)
def test_a_container_filled_from_unknown_data_has_no_length(tmp_path: Path, lines: str, vocabulary: int | None) -> None:
    made = "config = AutoConfig.from_pretrained('Qwen/Qwen2.5-0.5B')\nconfig.vocab_size = len(vocab)\n"
    made += "model = AutoModelForCausalLM.from_config(config)\n"
    reading = read(tmp_path, f"{lines}{made}{TRAIN}    opt.step()\n")
    config: Any = reading.value("model.config")
    if vocabulary is not None:
        assert config["vocab_size"] == vocabulary
    else:
        assert config is None or config["vocab_size"] > 1000
        assert reading.warnings


def test_a_count_over_unknown_data_is_unknown(tmp_path: Path) -> None:
    made = "n = 0\nfor w in words():\n    n += 1\nconfig = AutoConfig.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
    made += "config.vocab_size = n\nmodel = AutoModelForCausalLM.from_config(config)\n"
    reading = read(tmp_path, f"{made}{TRAIN}    opt.step()\n")
    assert reading.warnings


def test_saved_adapters_are_not_read(tmp_path: Path) -> None:
    load = "model = PeftModel.from_pretrained(model, 'adapter', is_trainable=True)\n"
    reading = read(tmp_path, f"{load}{TRAIN}    opt.step()\n")
    assert any("vramtop does not read their rank and layers" in each for each in reading.warnings)
    other = load.replace("model = ", "merged = ").replace("(model,", "(AutoModelForCausalLM.from_pretrained('gpt2'),")
    reading = read(tmp_path, f"{TRAIN}    opt.step()\n{other}")
    assert not any("adapters" in each for each in reading.warnings)  # of a model that is not trained
