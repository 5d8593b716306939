"""``vramtop --once --host``: several hosts as text and as JSON."""

from pathlib import Path

import msgspec
import pytest
from command_line import vramtop
from json_schemas import valid_json
from stand_in_ssh import StandInSsh

from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.fleet.fleet import FleetGpu, FleetProcess, HostReading, RankFacts
from vramtop.monitor.fleet.ssh_command import SSH_VARIABLE
from vramtop.monitor.fleet.stream_line import stream_line


def host(name: str, first: int, status: str = "on_budget") -> HostReading:
    """Make a host with two of the four ranks of a run."""

    def gpu(at: int) -> FleetGpu:
        facts = RankFacts(rank=first + at, world_size=4, master="node01:29500")
        held = {"used_bytes": (60 + first + at) * GIB, "budget_bytes": 60 * GIB, "status": status}
        process = FleetProcess(pid=700 + at, user="ann", job="tune", facts=facts, **held)
        sizes = {"total_bytes": 80 * GIB, "used_bytes": 62 * GIB, "free_bytes": 18 * GIB}
        return FleetGpu(index=at, name="NVIDIA H100", processes=(process,), committed_bytes=0, **sizes)

    return HostReading(host=name, time=1000.0, gpus=(gpu(0), gpu(1)))


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInSsh:
    stand_in = StandInSsh(tmp_path)
    monkeypatch.setenv(SSH_VARIABLE, str(stand_in.program))
    stand_in.sends("a", stream_line(host("x", 0)))
    stand_in.sends("b", stream_line(host("y", 2, "over")))
    stand_in.does("c", "echo 'ssh: connect to host c port 22: No route to host' >&2; exit 255")
    return stand_in


def test_text_names_the_rank_that_diverges_and_the_host_that_is_gone(ssh):
    text = vramtop("--once", "--host", "a,b", "--host", "c", code=0).out
    assert text.startswith("3 hosts, 4 GPUs\n1 of 3 silent (c) · 2 of 4 processes diverging · free 72.0 of 320.0 GiB")
    assert "host c: ssh: connect to host c port 22: No route to host" in text
    rank = next(line for line in text.splitlines() if "GPU b:1" in line and "63.0 GiB" in line)
    assert rank.split("60.0")[1].split() == ["OVER", "tune:", "rank", "3", "of", "4"]


def test_json_has_nulls_for_what_is_unknown(ssh):
    fleet = valid_json("once-hosts", vramtop("--once", "--json", "--host", "a,b,c", code=0).out)
    assert fleet["totals"]["free_bytes"] == 72 * GIB
    assert (fleet["totals"]["processes"], fleet["totals"]["diverging"]) == (4, 2)
    assert fleet["hosts"][1]["gpus"][1]["processes"][0]["facts"]["rank"] == 3
    assert fleet["hosts"][0]["gpus"][0]["unattributed_bytes"] is None
    assert (fleet["hosts"][2]["state"], fleet["hosts"][2]["gpus"], fleet["hosts"][2]["age_seconds"]) == (
        *("unreachable", []),
        None,
    )


def test_hosts_that_all_fail_are_unknown_not_empty(ssh):
    out = vramtop("--once", "--json", "--host", "c", code=3).out
    assert valid_json("once-hosts", out)["totals"]["free_bytes"] is None


@pytest.mark.parametrize(
    "words",
    [
        ["--once", "--host=-oProxyCommand=id"],
        ["--once", "--host", "a;id"],
        ["--once", "--host", "a", "--pid", "1"],
        ["--host", "a", "doctor"],
    ],
)
def test_wrong_input_is_one_sentence(ssh, words):
    assert vramtop(*words, code=2).err.count("\n") == 1


def test_a_later_version_is_read_and_its_new_words_are_unknown(ssh):
    reading = host("x", 0, status="resting")
    line = valid_json("stream", stream_line(reading))
    ssh.sends("a", msgspec.json.encode({**line, "schema": line["schema"] + 1, "moons": 3}) + b"\n")
    assert "unknown  tune: rank 0 of 4" in vramtop("--once", "--host", "a", code=0).out
