"""``vramtop rehearse``: the text, the JSON and the exit codes."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from command_line import vramtop
from json_schemas import valid_json

from vramtop.estimator.budget import Budget
from vramtop.estimator.trace.answer_cache import cache_file

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("quick_rehearsals")

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


def test_a_program_is_rehearsed_for_a_card(in_folder: Path) -> None:
    Path("train.py").write_text(PROGRAM)
    command = ["--", sys.executable, "train.py"]
    out = vramtop("rehearse", "--gpu-type", "4090", *command, code=0).out
    assert f"train.py: {sys.executable} train.py\n8,478,730 parameters" in out.replace("\n  ", " ")
    assert "A  128.0  train.py:6  1         float32  4096 x 8192" in out
    assert "torch (MiB): " in out
    assert "vramtop fit --rehearse shows whether it fits" in out
    assert "2 assumptions" in out
    said = vramtop("rehearse", "--json", "--out", "budget.json", "--steps", "2", *command, code=0).out
    found = valid_json("estimate", said)
    assert json.loads(Path("budget.json").read_text())["peak"] == found["peak"]
    assert found["method"] == "rehearsed"
    assert found["job"] == {
        "program": {
            "command": shlex.join([sys.executable, "train.py"]),
            "folder": str(in_folder.resolve()),
            "gpus": 1,
            "offline": False,
            "steps": 2,
            "timeout": 600,
        }
    }
    assert found["rehearsal"]["optimizer_steps"] == {"Adam": 2}
    assert found["model"]["trainable_parameters"] == 1024 * 8192 + 8192 + 81930
    assert found["largest"][0]["line"] == f"{in_folder.resolve()}/train.py:6"
    assert {"inputs", "other_models"} <= found["peak"]["components"].keys()
    backward = next(phase for phase in found["phases"] if phase["name"] == "backward")
    assert sum(backward["components"].values()) - backward["components"]["context"] == backward["allocated_bytes"]
    again = Budget.from_json(found).to_json()
    assert json.loads(json.dumps({**again, "notes": []})) == found
    low, high = found["peak"]["low_bytes"], found["peak"]["high_bytes"]
    assert low < found["peak"]["device_bytes"] < high


def test_what_cannot_be_rehearsed_is_a_sentence(in_folder: Path) -> None:
    Path("train.py").write_text("print('so far')\nraise ValueError('no data in /data')\n")
    assert "no command given; write: vramtop rehearse -- python train.py" in vramtop("rehearse", code=2).err
    assert "other.py: no such file" in vramtop("rehearse", "--", sys.executable, "other.py", code=2).err
    err = vramtop("rehearse", "--", sys.executable, "train.py", code=3).err
    assert "so far" in err
    assert err.endswith("at train.py:2: ValueError: no data in /data\n")


def test_a_launch_line_whose_script_was_read_is_told_of_the_rehearsal(in_folder) -> None:
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
    line = ["fit", "--gpu-type", "4090", "--seq", "128", "--method", "formula", "--set", "training.keep_outputs=true"]
    line += ["--", sys.executable, "train.py"]
    said = "vramtop read the program but did not run it; vramtop fit --rehearse --gpu-type 4090 -- "
    for collate in ("collate_fn=collate", ""):
        Path("train.py").write_text(text.format(collate=collate))
        assert said in " ".join(vramtop(*line, code=0).out.split())


@pytest.mark.slow
def test_a_rehearsed_program_is_judged_as_a_job_is(in_folder: Path) -> None:
    Path("train.py").write_text(PROGRAM)
    command = ["--rehearse", "--", sys.executable, "train.py"]
    assert "FITS  needs 1.2 GiB and fits on GPU 0" in vramtop("fit", "--gpu-type", "4090", *command, code=0).out
    found = valid_json("fit", vramtop("fit", "--gpu-memory", "700MiB", "--json", *command, code=1).out)
    assert found["verdict"] == "does_not_fit"
    assert found["budget"]["method"] == "rehearsed"
    assert found["suggestions"] == []
    said = "No changes are suggested: train.py is rehearsed: change its flags and rehearse it again."
    assert found["notes"] == [said]
    err = vramtop("fit", "--rehearse", "--batch-size", "2", "--", "python", "train.py", code=2).err
    assert "--batch-size describes a job; give a program's own flags after --" in err


def test_a_job_file_may_name_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "job.toml").write_text(f'[program]\ncommand = "{sys.executable} train.py"\nsteps = 2\n')
    monkeypatch.chdir("/")
    out = vramtop("fit", "--rehearse", f"{tmp_path}/job.toml", "--gpu-type", "4090", "--json", code=0).out
    found = valid_json("fit", out)["budget"]
    assert found["rehearsal"]["optimizer_steps"] == {"Adam": 2}
    assert found["largest"][0]["line"] == f"{tmp_path.resolve()}/train.py:6"


@pytest.mark.slow
def test_who_asks_for_a_rehearsal_gets_one_and_others_the_one_that_is_kept(in_folder) -> None:
    Path("train.py").write_text(PROGRAM)
    line = ["--json", "--gpu-type", "4090", "--", sys.executable, "train.py"]

    def rehearsed(*words: str) -> float:
        found = json.loads(vramtop(*words, *line, code=0).out)
        return found.get("budget", found)["rehearsal"]["time"]

    first = rehearsed("rehearse")
    anew = rehearsed("rehearse")
    assert anew > first
    assert rehearsed("fit", "--rehearse") == anew
    line.append("--lr=1")
    assert rehearsed("fit", "--rehearse") > anew
    (file,) = {each.parent for each in cache_file("rehearsals", 0).parent.glob("*.json")}
    assert file.stat().st_mode & 0o77 == 0
