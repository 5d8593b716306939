"""``vramtop explain``: logs and snapshots from files and pipes, with a job and without, and bad input."""

import io
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import vramtop
from json_schemas import require_valid
from memory_snapshots import LOAD, Recorder, training_crash

from vramtop.estimator.crash.job_log import read_log

JOB = (
    "--job",
    "gpt2",
    "--set",
    "training.micro_batch=16",
    "--set",
    "training.sequence_length=1024",
    "--method",
    "formula",
)
MESSAGE = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
    "23.65 GiB of which 1.00 GiB is free. Process 611 has 3.00 GiB memory in use. Including non-PyTorch memory, this "
    "process has 19.25 GiB memory in use. Of the allocated memory 16.00 GiB is allocated by PyTorch, and 2.75 GiB is "
    "reserved by PyTorch but unallocated.\n"
)


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "slurm-1.out"
    path.write_text(f"starting\n{MESSAGE}slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0\n")
    return str(path)


def explained(*words: str) -> Any:
    found = json.loads(vramtop("explain", *words, "--json", code=0).out)
    require_valid("explain" if found["failure"] else "explain-snapshot", found)
    return found


def test_a_log_without_a_job(log: str) -> None:
    out = vramtop("explain", log, "--no-ascii", code=0).out
    assert "GPU memory ran out (rank 1, GPU 1, line 2): 2.00 GiB requested, 1.00 GiB free" in out
    assert "also line 3: a process was killed" in out
    assert "reserved by PyTorch, unused" in out
    assert "give it with --job JOB" in out


def test_what_would_have_fitted_fits_beside_the_other_processes(log: str) -> None:
    found = explained(log, *JOB)
    usable = (23.65 - 3.40) * 2**30  # the GPU without what was neither free nor the process's own
    assert found["budget"]["peak"]["device_bytes"] > usable
    fitting = [each for each in found["suggestions"] if each["verdict"] == "fits"]
    assert fitting
    assert all(each["high_bytes"] < usable * 1.01 for each in fitting)
    assert all(each["edits"] for each in fitting)
    assert found["failures"][1]["kind"] == "killed"


def test_v_lists_the_assumptions_that_their_number_promises(log: str) -> None:
    assert "assumptions: -v lists them" in vramtop("explain", log, *JOB, code=0).out
    out = vramtop("explain", log, *JOB, "-v", code=0).out
    assert "-v lists" not in out
    assert "assumed: " in out


def test_a_run_that_needed_more_than_its_budget_is_not_said_to_fit(tmp_path: Path) -> None:
    """GPT-2 with a batch of 1 would fit: what ran must have been larger, so that advice is for what ran."""
    path = tmp_path / "log"
    path.write_text(MESSAGE.replace("16.00 GiB is", "18.75 GiB is").replace("2.75 GiB is", "0 bytes is"))
    found = explained(str(path), "--job", "gpt2", "--set", "training.sequence_length=512", "--method", "formula")
    assert found["budget"]["peak"]["high_bytes"] < 10 * 2**30
    assert any("The program needs more than the given job" in each for each in found["compared"])
    assert found["suggestions"]


def test_the_rank_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(MESSAGE + MESSAGE.replace("rank1", "rank5").replace("2.00 GiB.", "3.00 GiB."))
    assert explained(str(path), "--rank", "5")["failure"]["memory"]["tried_bytes"] == 3 * 2**30
    assert "also line 2: rank 5: GPU memory ran out" in vramtop("explain", str(path), code=0).out
    err = vramtop("explain", str(path), "--rank", "9", code=2).err
    assert "no error of that rank; it has errors of ranks 1, 5" in err


def test_a_snapshot_beside_its_job(tmp_path: Path) -> None:
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps(training_crash()))
    out = " ".join(vramtop("explain", str(path), *JOB, code=0).out.split())
    assert "500 MiB requested, 120 MiB free; in the forward pass, at loss/loss_utils.py:36" in out
    assert "PREDICTED, FORWARD" in out
    assert "4 activations llama/modeling_llama.py:155 forward" in out


def test_torchs_own_snapshots_do_not_say_the_size_of_the_gpu(tmp_path: Path) -> None:
    path = tmp_path / "dump_snapshot.pickle"
    data = training_crash()
    del data["vramtop"]
    path.write_bytes(pickle.dumps(data))
    assert "--gpu-type NAME or --gpu-memory SIZE" in " ".join(vramtop("explain", str(path), *JOB, code=0).out.split())
    for size in (("--gpu-type", "4090"), ("--gpu-memory", "24")):
        found = explained(str(path), *JOB, *size)
        assert found["failure"]["memory"]["total_bytes"] == pytest.approx(24 * 2**30, rel=0.03)
        assert any(each["verdict"] == "fits" for each in found["suggestions"])


def test_a_snapshot_of_a_run_that_goes_on(tmp_path: Path) -> None:
    run = Recorder()
    run.alloc(30, LOAD)
    path = tmp_path / "now.json"
    path.write_text(json.dumps(run.snapshot(5)))
    out = vramtop("explain", str(path), code=0).out
    assert "no allocation failed" in out
    assert "35 MiB reserved in 2 segments, 5 MiB unused: 1 free block, the largest 5 MiB" in out
    assert explained(str(path))["snapshot"]["components"] == {"weights": 30 * 2**20}


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MESSAGE.encode())))
    assert explained("-")["failure"]["rank"] == 1


def test_the_launch_line_of_the_log_is_the_job_if_it_can_be_read(in_folder) -> None:
    Path("train.py").write_text(
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        "model = AutoModelForCausalLM.from_pretrained('gpt2')\n"
        "Trainer(model, TrainingArguments('out', per_device_train_batch_size=2)).train()\n"
    )
    Path("log").write_text(f"+ python train.py\n{MESSAGE}")
    found = explained("log", "--set", "training.sequence_length=256", "--method", "formula")
    assert found["budget"]["job"]["training"]["micro_batch"] == 2
    assert found["notes"] == ["The job was read from the log's launch line: python train.py"]
    Path("train.py").unlink()
    found = explained("log")
    assert found["budget"] is None
    assert "cannot read the job from the log's launch line" in found["notes"][0]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3221225472 "
            "bytes.\n     preallocated temp allocation:    3.00GiB\n",
            "GPU memory ran out (JAX/XLA, line 1): 3.00 GiB requested",
        ),
        ("RuntimeError: Unable to find a valid cuDNN algorithm\n", "Possible: GPU memory may have run out (cuDNN)"),
        (MESSAGE.replace("16.00 GiB is", "30.00 GiB is"), "memory in use, more than the GPU has, 23."),
    ],
)
def test_who_else_says_that_memory_ran_out(tmp_path: Path, lines: str, words: str) -> None:
    path = tmp_path / "log"
    path.write_text(lines)
    out = vramtop("explain", str(path), code=0).out
    assert words in " ".join(out.split())
    assert "also line" not in out
    assert ("The job is unknown" in out) == ("out of memory. Tried" in lines)
    assert explained(str(path))["failures"][0]["line"] == 1


def test_what_is_not_understood_is_shown_and_not_denied(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("loss 0.1\nfrobnicator: the arena is out of memory\n")
    out = " ".join(vramtop("explain", str(path), code=3).out.split())
    assert "Not understood: a line that may be an out-of-memory error line 2: frobnicator: the arena is out of" in out
    found = json.loads(vramtop("explain", str(path), "--json", code=3).out)
    require_valid("explain", found)
    assert found["failure"]["kind"] == "not understood"


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"", 2, "it is empty"),
        (b"\x1f\x8b\x08\x00rest", 2, "compressed; decompress it first"),
        (b"\x80\x04\x95cut", 2, "cut off, or damaged"),
        (b"\x80\x04cposix\nsystem\n.", 2, "nothing in it was executed"),
        (b"all is well\nloss 0.1\n", 3, "no out-of-memory error found in its 2 lines"),
    ],
    ids=range(5),
)
def test_what_cannot_be_explained(tmp_path: Path, content: bytes, code: int, words: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for json_too in ((), ("--json",)):
        assert words in vramtop("explain", str(path), *json_too, code=code).err


def test_files_that_are_none(tmp_path: Path) -> None:
    for file in (tmp_path / "absent", tmp_path, "/dev/zero"):
        assert "cannot be read" in vramtop("explain", str(file), code=2).err
    os.mkfifo(tmp_path / "pipe")
    assert "write COMMAND | vramtop explain -" in vramtop("explain", str(tmp_path / "pipe"), code=2).err


def test_the_text_of_a_log_cannot_move_the_cursor(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\x1b[2J\x9b1mKilled  \x1b]0;evil\x07\n" + b"srun: error: \x07n1: task 0: Out Of Memory\n")
    assert read_log(io.BytesIO(path.read_bytes())).failures
    assert vramtop("explain", str(path), code=0).out.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--gpu-type", "nosuch"), "nosuch"),
        (("--gpu-memory", "much"), "size 'much' is not understood"),
        (("--set", "nothing"), "nothing"),
        (("--set", "training.micro_batch=4"), "give it with --job JOB"),
        (("--rank", "7"), "has no error of that rank; it has errors of rank 1"),
        (("second.log",), "unexpected: second.log"),
    ],
)
def test_a_wrong_flag_is_an_error_where_the_message_does_not_need_it(log, words, sentence) -> None:
    code, out, err = vramtop("explain", log, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


def test_of_a_snapshot_without_history_and_stacks_nothing_is_claimed(tmp_path: Path) -> None:
    block = {"size": 2**30, "requested_size": 2**30, "address": 4096, "state": "active_allocated", "frames": []}
    segment = {"device": 0, "address": 4096, "total_size": 2**30, "stream": 0, "blocks": [block]}
    path = tmp_path / "now.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[]]}))
    out = " ".join(vramtop("explain", str(path), *JOB, code=0).out.split())
    assert "it is unknown whether an allocation failed" in out
    assert "unknown 1.00" in out
    assert "weights n/a" in out
    block["size"] = "much"
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[]]}))
    assert "a block of memory in it has no size" in vramtop("explain", str(path), code=2).err


def test_a_host_out_of_memory_kill_asks_for_a_job_for_what_it_says_of_cpu_ram(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0.\n")
    out = " ".join(vramtop("explain", str(path), code=0).out.split())
    assert "The host ran out of memory" in out
    assert "changes that would have fit" not in out
