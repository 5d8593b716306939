"""20,000 processes on the GPUs, thousands of them real: read, compared, printed, recorded and played."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from builders import make_budget
from fake_driver import FakeGpu, FakeProcess

from vramtop.estimator.common.sizes import MIB
from vramtop.monitor.anomalies.detector import AnomalyDetector
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
from vramtop.monitor.sources.recording import RecordingWriter, read_recording
from vramtop.tui.cli.board_json import board_json
from vramtop.tui.cli.board_text import board_lines
from vramtop.tui.draw.text_output import TextOutput


@pytest.fixture
def sleepers(start_program) -> Callable[[int], list[int]]:
    """Start processes that sleep until the test is over; a shell starts them faster than this program."""

    def start(count: int) -> list[int]:
        script = f"i=0; while [ $i -lt {count} ]; do sleep 600 & echo $!; i=$((i + 1)); done; echo; wait"
        shell = start_program(["sh", "-c", script])
        return [int(line) for line in iter(shell.stdout.readline, "\n")]

    return start


@pytest.mark.parametrize(("real", "processes"), [(20, 4_000), pytest.param(2_000, 20_000, marks=pytest.mark.slow)])
def test_a_gpu_with_thousands_of_processes(real, processes, driver, sleepers, tmp_path) -> None:
    own = sleepers(real)
    unused = (pid for pid in range(3_000_000, 2**22) if not Path(f"/proc/{pid}").exists())
    foreign = islice(unused, processes - real)
    gpu = FakeGpu(processes=[FakeProcess(pid, MIB) for pid in (*own, *foreign)])
    driver.gpus.append(gpu)
    source = NvmlSource(first_timeout=120)
    source.open()
    snapshot = source.read()
    source.close()
    assert len(snapshot.gpus[0].processes or ()) == processes
    described = {process.pid for process in snapshot.gpus[0].processes or () if process.command}
    assert described == set(own)

    board = Watchlist(make_budget, anomaly_detector=AnomalyDetector(min_duration_seconds=0)).update(snapshot)
    assert json.dumps(board_json(board)).count('"pid"') >= processes
    output = TextOutput(colour_depth="none", ascii_only=False, width=100, unlimited_width=True)
    assert sum(line.startswith("pid ") for line in board_lines(board, output)) == processes

    path = tmp_path / "r.jsonl.gz"
    with RecordingWriter(path) as writer:
        writer.write(snapshot)
    (played,) = read_recording(path)
    assert len(played.gpus[0].processes or ()) == processes
