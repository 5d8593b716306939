"""Anomalies as printed by ``vramtop --once`` and ``vramtop attach``."""

import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from builders import ScriptedSource, make_gpu, make_process, make_snapshot
from command_line import vramtop
from json_schemas import valid_json

from vramtop.tui.cli.commands import attach, once


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that replaces the GPUs of this machine."""

    def put(*gpus: Any) -> None:
        snapshot = make_snapshot(gpus, time=time.time())
        for command in (once, attach):
            monkeypatch.setattr(command, "NvmlSource", lambda **_: ScriptedSource([snapshot]))

    return put


def test_once_prints_anomalies_below_their_gpu(machine: Callable[..., None]) -> None:
    worker = make_process(102, 0.5, parent=101, name="pt_data_worker")
    machine(make_gpu(0), make_gpu(1, [make_process(101), worker], used_bytes=61 * 2**29))
    lines = vramtop("--once", code=0).out.splitlines()
    at = next(number for number, line in enumerate(lines) if "data loader worker of process 101" in line)
    assert lines[at - 1].startswith("GPU 1  NVIDIA H100")
    assert lines[at].startswith(
        "     ! 1 data loader worker of process 101 (process 102) holds a CUDA context: 0.5 GiB"
    )
    odd = valid_json("once", vramtop("--once", "--json", code=0).out)["anomalies"]
    assert [(each["kind"], each["gpu"], each["pids"]) for each in odd] == [("unseen", 0, []), ("helpers", 1, [102])]


def test_attach_shows_each_rank_with_its_gpu_and_anomalies(machine: Callable[..., None], start_script) -> None:
    process = start_script("--model_name_or_path", "Qwen/Qwen2.5-0.5B")
    mine = make_process(process.pid, 20, start_time=psutil.Process(process.pid).create_time())
    worker = make_process(102, 0.5, parent=process.pid, name="pt_data_worker")
    machine(make_gpu(0), make_gpu(1, [mine, worker]))
    words = ["attach", str(process.pid)]
    text = vramtop(*words, code=3).out
    report = valid_json("attach", vramtop(*words, "--json", code=3).out)
    assert ["-", str(process.pid), "1", "20.0", "NVML"] in [line.split() for line in text.splitlines()]
    assert "warning: GPU 1: 1 data loader worker of process" in text
    (rank,) = report["ranks"]
    assert (rank["gpu"], rank["gpu_from"], rank["gpu_sure"]) == (1, "NVML", "certain")
    assert [each["kind"] for each in report["anomalies"]] == ["helpers"]
