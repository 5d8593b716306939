"""A program that was not wholly read is rehearsed where the user agrees, on a terminal or beforehand."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from counted_python import counted_python

from vramtop.tui.cli.main import main

OPEN = """\
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from mylib import data, optimizer
model = AutoModelForCausalLM.from_pretrained("gpt2")
tokenizer = AutoTokenizer.from_pretrained("gpt2")
rows = data().map(lambda row: tokenizer(row["text"], truncation=True, padding="max_length", max_length=512))
args = TrainingArguments(output_dir="out", per_device_train_batch_size=4)
Trainer(model=model, args=args, train_dataset=rows, optimizers=(optimizer(model), None)).train()
"""
"""A program that is read, but for its optimizer."""
UNREAD = """\
import torch
net = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(5):
    net(torch.randn(8, 1024).cuda()).sum().backward()
    optimizer.step()
"""
"""A program whose model cannot be read."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def folder(in_folder: Path, own_cache: Path) -> Path:
    """The current folder, with both programs."""
    (in_folder / "train.py").write_text(UNREAD)
    (in_folder / "open.py").write_text(OPEN)
    return in_folder


@pytest.fixture
def runs(folder: Path) -> Iterator[Callable[[], int]]:
    """How often a program has been started."""
    with counted_python(folder / "python") as count:
        yield count


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Makes this a terminal, on which the user types these lines."""

    def typed(lines: str) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal(lines))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    return typed


def line(folder: Path, *flags: str, script: str = "train.py") -> list[str]:
    memory = "8" if script == "open.py" else "24"
    return ["fit", "--gpu-memory", memory, *flags, "--", str(folder / "python"), script]


def test_flags_that_describe_a_job_do_not_hide_the_way_out(folder, runs, capsys) -> None:
    assert main(line(folder, "--seq", "512", "--set", "training.optimizer=sgd")) == 2
    said = capsys.readouterr().err
    way_out = f"without --seq, --set training.optimizer=sgd: vramtop rehearse -- {folder / 'python'} train.py"
    assert way_out in said
    assert runs() == 0


def test_preflight_names_the_rehearsal_of_what_was_not_wholly_read(python_with_torch, capsys) -> None:
    main(["preflight", "--gpu-memory", "24", "--method", "formula", "--", python_with_torch, "open.py"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert "vramtop preflight --rehearse --gpu-memory 24GiB -- " in last


@pytest.mark.parametrize("script", ["train.py", "open.py"])
@pytest.mark.parametrize("setting", ["ask", "always"])
def test_without_a_terminal_nothing_runs_and_the_last_line_is_the_command(
    script: str,
    setting: str,
    folder: Path,
    runs: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VRAMTOP_ESTIMATES_REHEARSE", setting)
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))  # a pipe takes what it prints
    assert main(line(folder, script=script)) == 3
    said = capsys.readouterr()
    memory = "8GiB" if script == "open.py" else "24GiB"
    command = f"vramtop fit --rehearse --gpu-memory {memory} -- {folder}/python {script} runs"
    assert command in " ".join((said.out + said.err).split()[-16:])
    assert runs() == 0


def test_a_read_program_whose_verdict_stays_open_shows_its_figure_and_asks(folder, runs, answer, capsys) -> None:
    answer("what\nn\n")
    assert main(line(folder, script="open.py")) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("Needs about 5.6 GiB (0.6 - 11.2), read from the command line. Not known: - open.py line 7")
    assert said.count("Rehearse it for the exact figure") == 2
    assert "TIGHT" in said
    assert runs() == 0


def test_a_program_of_which_all_was_read_is_asked_about_for_that_alone(folder, runs, answer, capsys) -> None:
    whole = OPEN.replace(", optimizers=(optimizer(model), None)", "")
    (folder / "whole.py").write_text(whole)
    answer("n\n")
    main(["fit", "--gpu-memory", "6", "--", str(folder / "python"), "whole.py"])
    said = " ".join(capsys.readouterr().out.split())
    assert "read from the command line. whole.py was read, not run: " in said
    assert "Not known" not in said
    assert runs() == 0


@pytest.mark.parametrize("lines", ["n\n", ""])
def test_a_no_and_no_answer_run_nothing(lines, folder, runs, answer, capsys) -> None:
    answer(lines)
    assert main(line(folder)) == 3
    said = " ".join(capsys.readouterr().out.split())
    for what in ("vramtop could not read this job: ", f"command {folder}/python train.py", f"folder {folder}", ", of "):
        assert what in said
    assert runs() == 0


@pytest.mark.usefixtures("quick_rehearsals")
def test_a_notebook_that_is_read_and_not_understood_is_rehearsed_after_a_yes(folder, answer, capsys) -> None:
    pytest.importorskip("torch")
    cell = {"cell_type": "code", "source": f"%load_ext autoreload\n{UNREAD}", "metadata": {}, "outputs": []}
    (folder / "train.ipynb").write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4}))
    answer("y\n")
    assert main(["fit", "--python", sys.executable, "--gpu-memory", "24", "train.ipynb"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "command python train.ipynb" in said
    assert "train.ipynb cell 1:3" in said
    assert "were not run: %load_ext autoreload (cell 1)" in said


@pytest.mark.usefixtures("quick_rehearsals")
def test_a_yes_runs_it_once_and_its_rehearsal_answers_from_then_on(folder, runs, answer, capsys) -> None:
    pytest.importorskip("torch")
    answer("\n")
    assert main(line(folder)) == 0
    assert runs() == 1
    answer("")
    assert main(line(folder)) == 0
    assert runs() == 1
    assert capsys.readouterr().out.count("Rehearse it") == 1


@pytest.mark.usefixtures("quick_rehearsals")
def test_the_setting_always_runs_it_on_a_terminal(folder, runs, answer, monkeypatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("VRAMTOP_ESTIMATES_REHEARSE", "always")
    answer("")
    assert main(line(folder)) == 0
    assert runs() == 1


def test_a_program_whose_length_is_not_known_has_a_figure_at_the_usual_one(folder, runs, capsys) -> None:
    (folder / "open.py").write_text(OPEN.replace("max_length=512", "max_length=mylib.LENGTH"))
    assert main(line(folder, script="open.py")) == 3
    assert "At 4 x 1,024 tokens on a GPU, which is a guess, it needs about " in capsys.readouterr().err  # gpt2's most
    assert runs() == 0


@pytest.mark.parametrize("how", ["--read-only", "the setting"])
def test_what_is_only_to_be_read_is_not_asked_about(how, folder, runs, answer, monkeypatch, capsys) -> None:
    flags = [how] if how.startswith("--") else []
    if not flags:
        monkeypatch.setenv("VRAMTOP_ESTIMATES_REHEARSE", "never")
    answer("y\n")
    assert main(line(folder, *flags)) == 2
    assert main(line(folder, *flags, script="open.py")) == 4
    said = capsys.readouterr()
    assert "rehearse" not in (said.out + said.err).lower()
    assert runs() == 0


def test_a_setting_that_others_may_write_runs_nothing(folder, runs, answer) -> None:
    settings = folder / "settings.toml"
    settings.write_text('[estimates]\nrehearse = "always"\n')
    settings.chmod(0o666)
    answer("")
    assert main([*line(folder)[:1], "--config", str(settings), *line(folder)[1:]]) == 3
    assert runs() == 0


@pytest.mark.usefixtures("runs")
def test_settings_that_the_user_fills_in_are_no_reason_to_ask(folder, answer, capsys) -> None:
    answer("y\n")
    assert main(line(folder, "--set", "training.micro_batch=4")) == 2
    assert main(line(folder, "--set", "training.micro_batch=4", script="open.py")) == 4
    assert "[Y/n]" not in capsys.readouterr().out


@pytest.mark.parametrize("model", ["suno/bark", "nobody/whisper-hindi", "nobody/unheard-of", "./missing"])
def test_a_model_that_is_not_known_is_no_reason_not_to_rehearse(model, folder, runs, capsys) -> None:
    (folder / "open.py").write_text(OPEN.replace("gpt2", model))
    assert main(["estimate", "--gpu-type", "4090", "--", str(folder / "python"), "open.py"]) == 3
    said, offered = capsys.readouterr().err.strip().rsplit("\n", 1)
    assert model.removeprefix("./") in said
    command = f"vramtop estimate --rehearse --gpu-type 4090 -- {folder}/python open.py"
    assert offered == f"vramtop: not rehearsed: {command} runs the program without a GPU"
    assert runs() == 0
