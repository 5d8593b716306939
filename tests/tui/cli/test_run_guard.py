"""``vramtop run --fit``: the command starts, or it does not and the reason is printed."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import ScriptedSource, make_gpu, make_snapshot
from command_line import vramtop
from json_schemas import valid_json

from vramtop.estimator.common.sizes import GIB

SCRIPT = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("gpt2")
args = TrainingArguments("out", per_device_train_batch_size=4, bf16=True)
Trainer(model=model, args=args, train_dataset=None).train()
"""
SETTINGS = ("--set", "training.sequence_length=512", "--method", "formula")
Answer = Callable[..., tuple[int | None, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Answer:
    """Return exit code (None: the command was started), output and complaint of ``vramtop run`` on such GPUs."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def ask(*words: str, free: tuple[float, ...] = (70,), line: tuple[str, ...] | None = None) -> Any:
        gpus = [make_gpu(n, free_bytes=round(size * GIB)) for n, size in enumerate(free)]
        started: list[dict[str, str]] = []
        source = ScriptedSource([make_snapshot(gpus)])
        monkeypatch.setattr("vramtop.tui.cli.fitting.machine_gpus.NvmlSource", lambda: source)

        def start(_file: str, _line: list[str], environ: dict[str, str]) -> None:
            started.append(environ)
            raise SystemExit(0)

        monkeypatch.setattr(os, "execvpe", start)
        code, out, err = vramtop("run", *words, "--", *(line or (sys.executable, str(script))))
        return (started[0].get("CUDA_VISIBLE_DEVICES", "all") if started else code), out, err

    return ask


def test_a_job_that_fits_starts_unchanged(run: Answer) -> None:
    visible, out, err = run("--fit", *SETTINGS)
    assert (visible, out) == ("all", "")
    assert err.startswith("vramtop: needs ")
    assert "fits" in err


@pytest.mark.parametrize("starts", ["torchrun --nproc-per-node gpu", "deepspeed", "accelerate launch --use_fsdp"])
def test_a_line_that_starts_a_process_for_each_gpu_is_judged_on_those_that_are_here(
    run: Answer, tmp_path: Path, starts: str
) -> None:
    _, _, err = run("--fit", *SETTINGS, free=(70, 70), line=(*starts.split(), str(tmp_path / "train.py")))
    assert "needs 2 × " in err


def test_a_job_that_does_not_fit_is_not_started_and_gets_suggestions(run: Answer) -> None:
    code, out, err = run("--fit", *SETTINGS, free=(2,))
    assert code == 1
    assert "DOES NOT FIT" in out.upper()
    assert "ways to make it fit, least costly first:" in out
    assert err.strip().endswith("was not started")
    code, out, err = run("--fit", *SETTINGS, "--json", free=(2,))
    found = valid_json("fit", out)
    assert (code, found["verdict"], bool(found["suggestions"])) == (1, "does_not_fit", True)


def test_where_not_every_gpu_would_do_the_command_sees_those_that_do(run: Answer) -> None:
    assert run("--fit", *SETTINGS, free=(4, 70))[0] == "GPU-00000001"
    assert run("--fit", *SETTINGS, free=(70, 70))[0] == "all"


def test_a_job_that_is_not_understood_starts_with_a_sentence_unless_strict(run: Answer) -> None:
    line = (sys.executable, "-c", "print(1)")
    visible, _, err = run("--fit", line=line)
    assert visible == "all"
    assert "cannot tell whether the job fits: " in err
    assert "starting it anyway" in err
    code, _, err = run("--fit", "--strict", line=line)
    assert code == 3
    assert "it was not started (--strict)" in err


def test_a_tight_job_starts_unless_strict_and_one_that_is_expected_not_to_fit_does_not(run: Answer) -> None:
    _, out, _ = run("--fit", *SETTINGS, "--json", free=(1,))
    peak = valid_json("fit", out)["budget"]["peak"]
    between = (peak["device_bytes"] + peak["high_bytes"]) / 2 / GIB
    assert run("--fit", *SETTINGS, free=(between,))[0] == "all"
    code, _, err = run("--fit", "--strict", *SETTINGS, free=(between,))
    assert code == 4
    assert "was not started (--strict)" in err
    between = (peak["low_bytes"] + peak["device_bytes"]) / 2 / GIB
    code, out, err = run("--fit", *SETTINGS, free=(between,))
    assert code == 3
    assert "CANNOT TELL" in out
    assert "ways to make it fit, least costly first:" in out
    assert err.strip().endswith("was not started")
    assert run("--fit", *SETTINGS, free=(between, 70))[0] == "GPU-00000001"


def test_a_job_that_cannot_be_read_names_the_rehearsal(run: Answer) -> None:
    visible, _, err = run("--fit")
    assert visible == "all"
    assert "does not set training.sequence_length" in err
    assert f"not rehearsed: vramtop run --fit --rehearse -- {sys.executable} " in err
    assert run("--fit", "--strict")[0] == 3


def test_of_a_job_over_several_machines_this_machine_s_ranks_are_checked(run: Answer, tmp_path: Path) -> None:
    script = str(tmp_path / "train.py")
    several = ("torchrun", "--nnodes", "2", "--nproc-per-node", "2", script)
    assert run("--fit", *SETTINGS, free=(70, 70), line=several)[0] == "all"
    assert run("--fit", *SETTINGS, free=(1, 70), line=several)[0] == 1
    assert run("--fit", *SETTINGS, free=(70, 70), line=("torchrun", "--nproc-per-node", "4", script))[0] == 1


def test_wrong_flags_are_errors_and_nothing_starts(run: Answer) -> None:
    for flags in (("--strict",), ("--gpu", "0"), ("--set", "training.micro_batch=2")):
        code, _, err = run(*flags)
        assert (code, err) == (2, f"vramtop: {flags[0]} needs --fit\n")
    code, _, err = run("--fit", "--set", "training.micro_btach=2")
    assert code == 2
    assert "did you mean 'training.micro_batch'" in err
    code, _, err = run("--fit", "--gpu", "7")
    assert code == 2
    assert "there is no GPU 7 here" in err


def test_a_command_without_the_dashes_is_an_error_in_a_sentence() -> None:
    assert "unexpected: ls; write the command after --" in vramtop("run", "ls", code=2).err


def test_a_command_that_cannot_be_started_leaves_the_signals_as_they_were() -> None:
    numbers = (signal.SIGPIPE, signal.SIGXFSZ)
    before = [signal.getsignal(number) for number in numbers]
    err = vramtop("run", "--", "no-such-command", code=2).err
    assert "no-such-command: cannot be started: No such file or directory" in err
    assert [signal.getsignal(number) for number in numbers] == before
