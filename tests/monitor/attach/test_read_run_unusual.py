"""Hidden, misleading and ended processes, and ones that do not train: each is reported in one sentence."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from waiting import until

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.estimation import estimate
from vramtop.monitor.attach.read_run import read_run

SLEEPS = "import time\nprint('ready', flush=True)\ntime.sleep(120)\n"


@pytest.mark.parametrize("pid", [-1, 2**80])
def test_an_impossible_pid_is_an_error(pid: int) -> None:
    with pytest.raises(InputError, match="There is no process"):
        read_run(pid)


def test_a_zombie_and_a_pid_without_a_process_are_errors(start_python) -> None:
    process = start_python("")
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    with pytest.raises(CannotTellError, match="has ended already"):
        read_run(process.pid)
    process.wait()
    with pytest.raises(InputError, match=f"no process {process.pid}"):
        read_run(process.pid)


def test_a_reused_pid_is_an_error(start, script) -> None:
    pid = start([sys.executable, script(SLEEPS)])
    with pytest.raises(CannotTellError, match="now a different process"):
        read_run(pid, start_time=psutil.Process(pid).create_time() - 100)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (
            ["bash", "-c", "echo ready; sleep 120; true"],
            r"\(bash -c echo ready; sleep 120; true\) runs no readable Python script",
        ),
        (["PYTHON", "-c", SLEEPS], "runs Python code that is not in a file"),
    ],
)
def test_a_process_that_is_no_training_is_an_error(start, command: list[str], why: str) -> None:
    pid = start([word.replace("PYTHON", sys.executable) for word in command])
    with pytest.raises(CannotTellError, match=why):
        read_run(pid)


TITLED = """\
import ctypes, sys, time
at = int(open("/proc/self/stat").read().rpartition(")")[2].split()[45])
until = int(open("/proc/self/stat").read().rpartition(")")[2].split()[48])
title = b"ray::train [rank=0]"
ctypes.memset(at, 0, until - at)
ctypes.memmove(at, title, len(title))
print("ready", flush=True)
time.sleep(120)
"""


def test_an_overwritten_command_line_is_an_error(start, script, flags) -> None:
    pid = start([sys.executable, script(TITLED), *flags()])
    with pytest.raises(CannotTellError, match=rf"Process {pid} \(ray::train \[rank=0\]\) has overwritten its own"):
        read_run(pid)


def test_pipes_in_place_of_files_are_not_waited_for(start, script, tmp_path: Path, flags) -> None:
    pid = start([sys.executable, script(SLEEPS), *flags(), "--config", "x.yaml"], CUDA_MODULE_LOADING="EAGER")
    (tmp_path / "train.py").unlink()
    os.mkfifo(tmp_path / "train.py")
    os.mkfifo(tmp_path / "x.yaml")
    (tmp_path / "tiny" / "config.json").unlink()
    os.mkfifo(tmp_path / "tiny" / "config.json")
    reading = read_run(pid).reading
    assert [warning.partition(":")[0] for warning in reading.warnings] == [
        "Could not read the program's configuration",
        "Could not read the script",
        "The model's config cannot be read",
    ]
    assert reading.value("software.module_loading") == "eager"


def test_arguments_that_are_not_utf_8_are_replaced(start, script, tmp_path: Path, flags) -> None:
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    script(SLEEPS)
    (tmp_path / "tiny").rename(folder / "tiny")
    code = f"import os; os.chdir({str(folder)!r}); os.execv({sys.executable!r}, [{sys.executable!r}, '../train.py',"
    words = ", ".join(repr(word) for word in [*flags(), "--run_name", "caf\udce9", "--bad\udcff", "x" * 100_000])
    attached = read_run(start([sys.executable, "-c", f"{code} {words}])"], NAME="\udcff"))
    job = attached.reading.job()
    assert (job.name, job.training.precision) == ("caf\ufffd", "bf16")
    assert attached.reading.missing == ()
    json.dumps(attached.to_json(), ensure_ascii=False).encode()
    msgspec.json.encode(job)


def test_a_script_on_standard_input_is_read_from_a_file_but_not_from_a_pipe(start, script, flags) -> None:
    line = f"{sys.executable} - < {script('SEQ_LEN = 96' + chr(10) + SLEEPS)} --model_name_or_path tiny; true"
    attached = read_run(start(["bash", "-c", line]))
    assert attached.reading.value("training.sequence_length") == 96
    pid = start(["bash", "-c", f"cat train.py | {sys.executable} - {' '.join(flags())}"])
    warnings = read_run(pid).reading.warnings  # and, as no transformers lies beside its interpreter, on its default
    assert [text for text in warnings if not text.startswith("default of transformers (version not known")] == [
        "The script came from standard input and is not counted."
    ]


def test_a_folder_in_our_working_directory_is_not_taken_for_the_processs_model(
    start, script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags
) -> None:
    (tmp_path / "here" / "gpt2").mkdir(parents=True)
    (tmp_path / "here" / "gpt2" / "config.json").write_text('{"model_type": "llama", "dtype": "float16"}')
    (tmp_path / "here" / "ours").symlink_to("gpt2")
    monkeypatch.chdir(tmp_path / "here")
    attached = read_run(start([sys.executable, script(SLEEPS), *flags(model_name_or_path="gpt2")], HF_HOME="/none"))
    assert attached.reading.value("model.config")["model_type"] == "gpt2"
    assert attached.reading.value("training.precision") == "fp32"
    reading = read_run(start([sys.executable, "train.py", *flags(model_name_or_path="ours")])).reading
    assert reading.missing == ("model.id",)
    assert any("no model 'ours'" in each for each in reading.warnings)


def test_code_that_a_process_names_as_its_model_is_not_run(start, script, flags) -> None:
    reading = read_run(start([sys.executable, script(SLEEPS), *flags(model_name_or_path="os:abort")])).reading
    assert reading.missing == ("model.id",)
    assert any("does not run code" in each for each in reading.warnings)


def test_a_worker_without_a_rank_is_a_single_process(start, tmp_path: Path) -> None:
    (tmp_path / "trl" / "scripts").mkdir(parents=True)
    (tmp_path / "trl" / "scripts" / "sft.py").write_text(SLEEPS)
    (tmp_path / "x.yaml").write_text("model_name_or_path: gpt2\nper_device_train_batch_size: 2\nnum_processes: 4\n")
    worker = [sys.executable, "trl/scripts/sft.py", "--config", "x.yaml"]
    (tmp_path / "trl.py").write_text(f"import subprocess\nsubprocess.run({worker!r})\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "trl").write_text((tmp_path / "trl.py").read_text())
    attached = read_run(start([sys.executable, "bin/trl", "sft", "--config", "x.yaml"]))
    assert attached.launcher == "trl"
    assert attached.reading.job().parallel.world_size == 1


HIDES = """\
import ctypes, subprocess, sys
for rank in (0, 1):
    subprocess.Popen([sys.executable, "-u", "train.py", *sys.argv[5:]])
__import__("time").sleep(120)
"""


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is hidden from root")
def test_ranks_with_unreadable_environments(start, script, tmp_path: Path, flags) -> None:
    script("import ctypes\nctypes.CDLL(None).prctl(4, 0)\n" + SLEEPS)
    (tmp_path / "torchrun").write_text(HIDES)
    pid = start([sys.executable, "torchrun", "--standalone", "--nproc-per-node", "2", "train.py", *flags()], ready=2)
    for asked in (pid, *(child.pid for child in psutil.Process(pid).children())):
        attached = read_run(asked)
        assert [rank.pid for rank in attached.ranks] == [child.pid for child in psutil.Process(pid).children()]
        assert attached.reading.value("parallel.data_replicate") == 2
        assert "may not see its environment" in attached.warnings[0]


def may_mount() -> bool:
    command = ["unshare", "--mount", "true"]
    return bool(shutil.which("unshare")) and not subprocess.run(command, capture_output=True, check=False).returncode


MOUNTED = """\
mount --bind inside mounted
cd mounted
exec "$0" train.py "$@"
"""


@pytest.mark.skipif(not may_mount(), reason="makes a mount namespace")
def test_paths_of_another_mount_namespace_are_those_that_the_process_sees(start, tmp_path: Path) -> None:
    for folder in ("inside", "mounted", "inside/tiny"):
        (tmp_path / folder).mkdir()
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes = {"vocab_size": 1000, "intermediate_size": 128, "dtype": "bfloat16"}
    (tmp_path / "inside/tiny/config.json").write_text(json.dumps(config | sizes))
    (tmp_path / "inside/train.py").write_text(SLEEPS)
    flags = ["--model_name_or_path", "./tiny", "--per_device_train_batch_size", "2", "--max_length", "64"]
    flags += ["--output_dir", "out", "--deepspeed", "missing.json"]
    pid = start(["unshare", "--mount", "bash", "-c", MOUNTED, sys.executable, *flags])
    attached = read_run(pid)
    answer = json.dumps(attached.to_json())
    assert f"/proc/{pid}" not in answer
    assert f"{tmp_path}/mounted/missing.json: no such file" in answer
    reading = attached.reading
    assert (reading.value("model.id"), reading.value("run.output_dir")) == (
        f"{tmp_path}/mounted/tiny",
        f"{tmp_path}/mounted/out",
    )
    assert reading.value("model.config")["vocab_size"] == 1000
    assert reading.value("training.precision") == "bf16"
    job = reading.job({"parallel.strategy": "zero2", "parallel.data_shard": 2})
    assert estimate(job, environ=attached.estimate_environ, method="formula").model.parameters > 0
