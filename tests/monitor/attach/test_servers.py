"""vLLM servers: from any of their processes, whose titles hide the command line, to the server that started them."""

import sys
from pathlib import Path

import psutil
import pytest

from vramtop.monitor.attach.read_run import read_run
from vramtop.monitor.host.process_info import UnreadableProcessError

SERVER = """\
import subprocess, sys
ENGINE = '''
import subprocess, sys, time
for title in sys.argv[1:]:
    wait = "import time; print('ready', flush=True); time.sleep(120)"
    subprocess.Popen([title, "-c", wait], executable="/proc/self/exe")
print("ready", flush=True)
time.sleep(120)
'''
titles = [f"VLLM::Worker_TP{rank}" for rank in range(int(sys.argv[-1]))] if "-tp" in sys.argv else []
subprocess.run(["VLLM::EngineCore", "-c", ENGINE, *titles], executable="/proc/self/exe")
"""


@pytest.fixture
def vllm(tmp_path: Path) -> str:
    script = tmp_path / "bin" / "vllm"
    script.parent.mkdir()
    script.write_text(SERVER)
    return str(script)


def titles(pid: int) -> dict[str, int]:
    return {child.cmdline()[0]: child.pid for child in psutil.Process(pid).children(recursive=True)}


def test_workers_are_the_ranks_of_the_server_that_started_them(start, vllm: str) -> None:
    line = [sys.executable, vllm, "serve", "Qwen/Qwen3-0.6B", "--max-model-len", "8k", "-tp", "2"]
    pid = start(line, ready=3)
    children = titles(pid)
    workers = [children["VLLM::Worker_TP0"], children["VLLM::Worker_TP1"]]
    for asked in (pid, *children.values()):
        attached = read_run(asked, on_gpu=workers[:1])
        assert [rank.pid for rank in attached.ranks] == workers
        assert attached.reading.missing == ()
        job = attached.reading.job()
        assert (job.model.id, job.training.sequence_length, job.parallel.tensor) == ("Qwen/Qwen3-0.6B", 8000, 2)


def test_an_engine_without_workers_is_the_only_rank(start, vllm: str) -> None:
    pid = start([sys.executable, vllm, "serve", "Qwen/Qwen3-0.6B", "--gpu-memory-utilization", "0.4"])
    engine = titles(pid)["VLLM::EngineCore"]
    attached = read_run(engine)
    assert [rank.pid for rank in attached.ranks] == [engine]
    inference = attached.reading.job().inference
    assert inference.gpu_memory_utilization == 0.4
    assert "vllm serve" in attached.command


def test_engines_that_a_script_starts_are_no_part_of_what_it_trains(start, vllm: str, tmp_path: Path) -> None:
    script = tmp_path / "generate.py"
    script.write_text(SERVER)
    pid = start([sys.executable, str(script)])
    with pytest.raises(
        UnreadableProcessError, match=r"an engine that process \d+ \(generate.py\) has started"
    ) as refused:
        read_run(titles(pid)["VLLM::EngineCore"])
    assert refused.value.reason == "server"
    assert [rank.pid for rank in read_run(pid, on_gpu=()).ranks] == [pid]


def test_a_server_without_known_rules_is_named(start, tmp_path: Path) -> None:
    package = tmp_path / "lmdeploy"
    package.mkdir()
    (package / "serve.py").write_text("import time; print('ready', flush=True); time.sleep(120)")
    pid = start([sys.executable, "-m", "lmdeploy.serve", "Qwen/Qwen3-0.6B"])
    with pytest.raises(UnreadableProcessError, match="belongs to LMDeploy, a server"):
        read_run(pid)


def test_workers_without_titles_are_those_on_the_gpus(start, vllm: str) -> None:
    Path(vllm).write_text(
        "import os, time\n"
        "if not os.fork() and not os.fork():\n    print('ready', flush=True)\n"  # an engine, and its worker
        "time.sleep(120)\n"
    )
    pid = start([sys.executable, vllm, "serve", "Qwen/Qwen3-0.6B"])
    engine, worker = sorted(child.pid for child in psutil.Process(pid).children(recursive=True))
    attached = read_run(worker, on_gpu={engine, worker})
    assert [rank.pid for rank in attached.ranks] == [engine, worker]
    assert attached.reading.value("inference.engine") == "vllm"
