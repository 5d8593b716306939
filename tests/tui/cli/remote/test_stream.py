"""``vramtop stream`` as a command: its lines, and its end."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from json_schemas import valid_json
from simulated_host import program

from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.fleet.stream_line import parse_stream_line

Stream = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def stream(start_program, tmp_path: Path) -> Stream:
    def run(*machine: int | str, stdin: int = subprocess.PIPE) -> "subprocess.Popen[bytes]":
        command = [str(program(tmp_path / "bin", *machine)), "stream", "--interval", "0.1"]
        environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}
        return start_program(command, stdin=stdin, stderr=None, text=False, env=environ, cwd=tmp_path)

    return run


def test_an_input_that_is_closed_leaves_time_for_one_line(stream: Stream) -> None:
    process = stream(2, 24, stdin=subprocess.DEVNULL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    host = parse_stream_line(output.splitlines()[0])
    assert [gpu.total_bytes for gpu in host.gpus] == [24 * GIB, 24 * GIB]
    assert host.interval == 0.1


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["stdin", "stdout"])
def test_it_ends_with_its_input_and_when_nobody_reads(stream: Stream, closed: str) -> None:
    process = stream(1, 24)
    lines = [process.stdout.readline() for _ in range(3)]
    assert len({valid_json("stream", line)["time"] for line in lines}) == 3
    getattr(process, closed).close()
    assert process.wait(60) == 0
