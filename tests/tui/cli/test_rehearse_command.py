"""``vramtop rehearse``: the text, the JSON and the exit codes."""

import json
import sys
from pathlib import Path

import pytest
from json_schemas import valid_json

from vramtop.tui.cli.main import main

pytest.importorskip("torch")

PROGRAM = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(1024, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 10)).cuda()
optimizer = torch.optim.Adam(net.parameters())
for step in range(5):
    loss = net(torch.randn(4096, 1024).cuda()).logsumexp(1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, python_with_torch: str) -> None:
    monkeypatch.setattr(sys, "executable", python_with_torch)


def test_a_program_is_rehearsed_for_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)
    command = ["--", sys.executable, "train.py"]
    assert main(["rehearse", "--gpu-type", "4090", *command]) == 0
    out = capsys.readouterr().out
    assert "train.py, GiB" in out
    assert "fits on RTX 4090" in out
    assert "1 (4096 x 8192)" in out
    assert "train.py:6" in out
    assert "assumed: Rehearsed with python" in out
    assert "3 steps of Adam" in out
    assert main(["rehearse", "--json", "--out", "budget.json", "--steps", "2", *command]) == 0
    found = valid_json("rehearse", capsys.readouterr().out)
    assert json.loads(Path("budget.json").read_text())["peak"] == found["peak"]
    assert found["method"] == "rehearsed"
    assert found["optimizer_steps"] == {"Adam": 2}
    assert found["trainable_parameters"] == 1024 * 8192 + 8192 + 81930
    backward = next(phase for phase in found["phases"] if phase["name"] == "backward")
    assert sum(backward["components"].values()) == backward["allocated_bytes"]
    low, high = found["peak"]["low_bytes"], found["peak"]["high_bytes"]
    assert low < found["peak"]["device_bytes"] < high


def test_what_cannot_be_rehearsed_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('so far')\nraise ValueError('no data in /data')\n")
    assert main(["rehearse"]) == 2
    assert "no command given; write: vramtop rehearse -- python train.py" in capsys.readouterr().err
    assert main(["rehearse", "--", sys.executable, "other.py"]) == 2
    assert "other.py: there is no such file" in capsys.readouterr().err
    assert main(["rehearse", "--", sys.executable, "train.py"]) == 3
    err = capsys.readouterr().err
    assert "so far" in err
    assert err.endswith("at train.py:2: ValueError: no data in /data\n")


def test_a_launch_line_that_is_not_wholly_understood_is_told_of_the_rehearsal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    text = """
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
from mylib import collate, data
import torch
model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader(data(), batch_size=8, {collate}):
    model(**batch).loss.backward()
    optimizer.step()
"""
    line = ["fit", "--gpu-type", "4090", "--seq", "128", "--method", "formula", "--", sys.executable, "train.py"]
    said = f"The program was read, not run; vramtop rehearse -- {sys.executable} train.py runs it without a GPU."
    Path("train.py").write_text(text.format(collate="collate_fn=collate"))
    assert main(line) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    Path("train.py").write_text(text.format(collate=""))
    assert main(line) == 0
    assert said not in " ".join(capsys.readouterr().out.split())
