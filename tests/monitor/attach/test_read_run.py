import json
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from slow_cases import first_quick
from waiting import until

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.isolation.seen import signature
from vramtop.estimator.trace.isolated_run import Report
from vramtop.estimator.trace.kept_rehearsals import RehearsalAnswer, keep, of_answer
from vramtop.estimator.trace.traced_step import TracedPhase
from vramtop.monitor.attach.read_run import read_run
from vramtop.monitor.probe.launch import probed_environment
from vramtop.monitor.probe.probe_reader import ProbeReader

SLEEPS = "import time\nprint('ready', flush=True)\ntime.sleep(120)\n"
SPAWNS = """\
import multiprocessing, time
def child():
    print("ready", flush=True)
    time.sleep(120)
if __name__ == "__main__":
    process = multiprocessing.get_context("METHOD").Process(target=child, daemon=True)
    process.start()
    process.join()
"""
needs_torch = pytest.mark.skipif(find_spec("transformers") is None, reason="needs torch and transformers")


def test_a_script_in_its_own_folder(start, script, tmp_path: Path, flags) -> None:
    pid = start([sys.executable, "-u", script(SLEEPS), *flags()], CUDA_VISIBLE_DEVICES="3")
    attached = read_run(pid)
    job = attached.reading.job()
    assert (job.model.id, job.training.micro_batch) == (str(tmp_path / "tiny"), 4)
    assert job.training.precision == "bf16"
    assert (attached.cwd, attached.launcher, attached.worker_python) == (tmp_path, None, sys.executable)
    assert [(rank.pid, rank.rank, rank.gpu_hint) for rank in attached.ranks] == [(pid, None, "3")]
    assert attached.start_time == psutil.Process(pid).create_time()
    answer = json.loads(json.dumps(attached.to_json()))
    assert answer["evidence"]["training.micro_batch"] == "--per_device_train_batch_size on the command line"
    assert answer["missing"] == []


def test_versions_are_read_from_the_interpreter_of_the_process(start, script, tmp_path, flags) -> None:
    packages = tmp_path / "venv" / "lib" / "python3.99" / "site-packages"
    (packages / "transformers-4.57.1.dist-info").mkdir(parents=True)
    (tmp_path / "venv" / "bin").mkdir()
    (tmp_path / "venv" / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    pid = start(["venv/bin/python", script(SLEEPS), *flags()])
    attached = read_run(pid)
    assert attached.worker_python == str(tmp_path / "venv" / "bin" / "python")
    assert attached.versions["transformers"] == "4.57.1"
    assert attached.reading.evidence()["training.optimizer"] == "default of transformers 4.57.1"
    assert attached.reading.value("training.precision") == "fp32"
    assert attached.reading.job().software.transformers == "4.57.1"
    assert attached.reading.evidence()["software.transformers"] == "installed beside its interpreter"
    (tmp_path / "own" / "transformers-5.1.0.dist-info").mkdir(parents=True)
    pid = start(["venv/bin/python", "train.py", *flags()], PYTHONPATH=str(tmp_path / "own"))
    assert read_run(pid).versions["transformers"] == "5.1.0"


def test_models_are_looked_up_in_the_cache_of_the_process(start, script, tmp_path, flags) -> None:
    snapshot = tmp_path / "cache" / "hub" / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "llama", "dtype": "float16"}')
    (tmp_path / "cache" / "hub" / "models--some--model" / "refs").mkdir()
    (tmp_path / "cache" / "hub" / "models--some--model" / "refs" / "main").write_text("abc")
    command = [sys.executable, script(SLEEPS), *flags(model_name_or_path="some/model")]
    environ = {"HF_HOME": str(tmp_path / "cache"), "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    attached = read_run(start(command, **environ, HF_TOKEN="hf_secret"))  # noqa: S106
    assert attached.estimate_environ["HF_HOME"] == str(tmp_path / "cache")
    assert attached.estimate_environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert "hf_secret" not in str(attached)
    assert attached.reading.value("training.precision") == "fp16"


@pytest.mark.parametrize("method", first_quick(["spawn", "fork"]))
def test_a_child_process_has_the_settings_of_its_program(start, script, method, flags) -> None:
    parent = start([sys.executable, script(SPAWNS.replace("METHOD", method)), *flags()])
    children = [child for child in psutil.Process(parent).children() if "resource_tracker" not in str(child.cmdline())]
    attached = read_run(children[0].pid)
    assert attached.reading.value("training.micro_batch") == 4
    assert [rank.pid for rank in attached.ranks] == [children[0].pid if method == "spawn" else parent]
    assert any("multiprocessing" in warning for warning in attached.warnings) == (method == "spawn")
    assert [rank.pid for rank in read_run(children[0].pid, on_gpu={parent}).ranks] == [parent]


def test_a_wrapper_is_read_as_the_script_that_it_waits_for(start, script, flags) -> None:
    pid = start(["timeout", "120", sys.executable, script(SLEEPS), *flags()])
    (child,) = psutil.Process(pid).children()
    assert [rank.pid for rank in read_run(pid).ranks] == [child.pid]
    line = f"{sys.executable} train.py {' '.join(flags())}; true"
    pid = start(["timeout", "120", "bash", "-c", line])
    assert [rank.pid for rank in read_run(pid).ranks] == [psutil.Process(pid).children(recursive=True)[1].pid]


def test_a_shell_with_several_jobs_needs_a_choice(start, script) -> None:
    line = f"{sys.executable} {script(SLEEPS)} --a & {sys.executable} train.py --b & wait; true"
    pid = start(["bash", "-c", line], ready=2)
    with pytest.raises(CannotTellError, match=r"several programs: \d+ \(train\.py\), \d+ \(train\.py\)"):
        read_run(pid)


def test_python_children_of_the_training_script_are_ignored(start, script, tmp_path, flags) -> None:
    (tmp_path / "logger.py").write_text(SLEEPS)
    starts = f"import subprocess, sys\nsubprocess.Popen([sys.executable, 'logger.py'])\n{SLEEPS}"
    pid = start(["bash", "-c", f"{sys.executable} {script(starts)} {' '.join(flags())}; true"], ready=2)
    assert "train.py" in read_run(pid).command


def test_settings_that_are_not_on_the_command_line_are_missing(start, script) -> None:
    reading = read_run(start([sys.executable, script(SLEEPS)])).reading
    assert reading.missing == ("model.id", "training.micro_batch", "training.sequence_length")
    assert reading.job({"model.id": "gpt2", "training.micro_batch": 2}).training.micro_batch == 2


TRAINS = """\
import os, time, torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
data = [{"input_ids": torch.ones(8, dtype=torch.long), "labels": torch.ones(8, dtype=torch.long)}] * 12
batch = int(os.environ["BATCH"]) + 1
arguments = TrainingArguments("out", per_device_train_batch_size=batch, max_steps=2, use_cpu=True, report_to=[],
                              gradient_accumulation_steps=batch, optim="adafactor", save_strategy="no")
Trainer(LlamaForCausalLM(config).to(torch.bfloat16), arguments, train_dataset=data).train()
print("ready", flush=True)
time.sleep(120)
"""


@pytest.mark.slow
@needs_torch
def test_a_probed_run_reports_settings_that_no_text_states(start, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    pid = start([sys.executable, "train.py"], **probed_environment({"BATCH": "2", "HF_HUB_OFFLINE": "1"}))
    until(lambda: "(probe)" in str(read_run(pid).reading.evidence().get("training.micro_batch")))
    attachment = read_run(pid)
    job = attachment.reading.job({"training.sequence_length": 8})
    assert (job.training.micro_batch, job.training.gradient_accumulation) == (3, 3)
    assert (job.training.precision, job.training.optimizer) == ("bf16", "adafactor")
    assert job.model.config["hidden_size"] == 16
    assert attachment.reading.evidence()["training.micro_batch"] == (
        "the running Trainer (probe): per_device_train_batch_size"
    )
    assert attachment.reading.missing == ("training.sequence_length",)
    until(lambda: ProbeReader(pid).read().steps == 2)


RANKS = """\
import multiprocessing, time
def work(rank):
    if rank == 1:
        multiprocessing.get_context("METHOD").Process(target=load, daemon=True).start()
    print("ready", flush=True)
    time.sleep(120)
def load():
    print("ready", flush=True)
    time.sleep(120)
if __name__ == "__main__":
    context = multiprocessing.get_context("METHOD")
    ranks = [context.Process(target=work, args=(rank,)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
"""


@pytest.mark.parametrize("method", first_quick(["fork", "spawn"]))
def test_ranks_started_by_the_program_itself_are_found(start, script, method: str, flags) -> None:
    program = start([sys.executable, script(RANKS.replace("METHOD", method)), *flags()], ready=3)
    ranks = [child for child in psutil.Process(program).children() if "resource_tracker" not in str(child.cmdline())]
    pids = {rank.pid for rank in ranks}
    loaders = [loader.pid for rank in ranks for loader in rank.children()]
    assert loaders
    for asked in (program, *pids, *loaders):
        attached = read_run(asked, on_gpu=pids)
        assert {rank.pid for rank in attached.ranks} == pids
        assert attached.reading.job().parallel.data_replicate == 2
        assert attached.reading.evidence()["parallel.data_replicate"] == "2 processes that it started hold GPU memory"
    assert [rank.pid for rank in read_run(program, on_gpu={program, *pids}).ranks] == [program]
    assert read_run(program).reading.job().parallel.world_size == 1


def process_environ(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def test_a_run_of_a_program_that_was_rehearsed_has_the_budget_of_its_rehearsal(start, script, tmp_path) -> None:
    parts = {"weights": 3 << 30, "activations": 2 << 30}
    answer = RehearsalAnswer(
        ended="steps",
        line="",
        steps=[],
        trained=7,
        doubts=[],
        seconds=1,
        host_bytes=1,
        versions={"torch": "2.13.0"},
        phases={"backward": TracedPhase(allocated=5 << 30, components=parts)},
        peak_reserved=6 << 30,
    )
    pid = start([sys.executable, "-u", script(SLEEPS), "--lr", "1"], BATCH="8")
    train = str(tmp_path / "train.py")
    report = Report(
        level="overlay",
        why={},
        code=0,
        watched=True,
        complete=True,
        addresses=[],
        paths={train: (2, signature(train, 2))},
    )
    words, environ = ["train.py", "--lr", "1"], process_environ(pid)
    kept = of_answer(Path(sys.executable), words, str(tmp_path), environ, answer=answer, report=report)
    keep("name", kept)
    attached = read_run(pid)
    assert set(attached.reading.evidence().values()) == {f"rehearsed on {kept.date}"}
    budget = estimate(attached.reading.job(), environ=attached.estimate_environ)
    assert (budget.method, budget.peak.components.activations) == ("rehearsed", 2 << 30)
    for other in (["--lr", "2"], ["--lr", "1"]):
        pid_of_other = start([sys.executable, "train.py", *other], BATCH="16")
        assert "program.kept" not in read_run(pid_of_other).reading.evidence()
    (tmp_path / "train.py").write_text(f"{SLEEPS}# changed")
    assert "program.kept" not in read_run(pid).reading.evidence()
    with pytest.raises(CannotTellError, match=r"train\.py has changed since it was rehearsed"):
        estimate(attached.reading.job())
