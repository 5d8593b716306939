"""``vramtop fit`` over hosts, read through a stand-in for ssh."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from json_schemas import valid_json
from stand_in_ssh import StandInSsh

from vramtop.estimator.advice.suggestion_search import shifted
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import quick_estimator
from vramtop.monitor.fleet.fleet import FleetGpu, FleetProcess, HostReading, stream_line
from vramtop.monitor.fleet.remote import SSH_VARIABLE
from vramtop.tui.cli.main import main
from vramtop.tui.draw.text_output import TextOutput

Fit = Callable[..., tuple[int, Any, str]]
H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
JOB = ("gpt2", "--method", "formula", "--batch-size", "1", "--seq-len", "256")


def host(*held: float, name: str = H100) -> HostReading:
    """Make a host with an 80 GiB GPU for each size that a known job holds."""
    gpus = [
        FleetGpu(
            index=at,
            uuid=f"GPU-{at}",
            name=name,
            total_bytes=81559 * 2**20,
            reserved_bytes=0,
            used_bytes=int(size * GIB),
            free_bytes=81559 * 2**20 - int(size * GIB),
            committed_bytes=0,
            processes=(FleetProcess(pid=9, user="ann", job="tune", used_bytes=int(size * GIB)),) * bool(size),
        )
        for at, size in enumerate(held)
    ]
    return HostReading(host="x", time=1000.0, gpus=tuple(gpus))


@pytest.fixture
def fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fit:
    """Run ``vramtop fit`` over hosts by name; None: there is no route to it. Returns exit code, output and errors."""
    ssh = StandInSsh(tmp_path)
    monkeypatch.setenv(SSH_VARIABLE, str(ssh.program))

    def run(hosts: dict[str, HostReading | None], *words: str) -> tuple[int, Any, str]:
        for name, reading in hosts.items():
            if reading is None:
                ssh.does(name, "echo 'ssh: connect to host: No route to host' >&2; exit 255")
            else:
                ssh.sends(name, stream_line(reading))
        code = main(["fit", *JOB, *(word for name in hosts for word in ("--host", name)), *words])
        out, err = capsys.readouterr()
        return code, valid_json("fit-hosts", out) if "--json" in words and out else out, err

    return run


def test_json_and_exit_codes(fit: Fit) -> None:
    code, said, _ = fit({"a": host(0, 0), "b": host(60, 79), "c": None}, "--json")
    [place] = said["placement"]
    assert (code, said["verdict"], place["host"], place["placement_uuids"]) == (0, "fits", "b", ["GPU-0"])
    assert [(each["host"], each["verdict"], each["state"]) for each in said["hosts"]] == [
        ("b", "fits", "live"),
        ("a", "fits", "live"),
        ("c", "unknown", "unreachable"),
    ]
    assert said["budget"]["peak"]["device_bytes"] == said["hosts"][0]["device_bytes"]
    code, said, _ = fit({"a": host(79)}, "--json")
    assert (code, said["verdict"], said["placement"]) == (1, "does_not_fit", [])
    code, said, _ = fit({"a": host(79), "c": None}, "--json")
    assert (code, said["verdict"]) == (3, "unknown")
    code, said, _ = fit({"c": None}, "--json")
    assert (code, said["budget"]) == (3, None)


def test_text_fits_a_terminal_of_80_columns(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = TextOutput(colour_depth="none", ascii_only=False, width=80)
    monkeypatch.setattr("vramtop.tui.cli.fitting.fleet_check.detect_output", lambda **_: narrow)
    names = {"gpu-node-with-a-long-name-0417": host(0, 79), "b": host(79, 79), "c": None}
    code, text, _ = fit(names)
    assert code == 0
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^✓ FITS  needs \S+ GiB: fits on gpu-node-with-a-long-name-0417 \(GPU 0\)", text)
    assert re.search(r"^\* gpu-node-with-a-long-na… +0 +2 +✓ fits +\d", text, re.MULTILINE)
    assert re.search(r"^  b +2 +✗ does not fit +\d", text, re.MULTILINE)
    assert "c: not considered, unreachable: ssh: connect to host: No route to host" in text


def test_only_the_card_that_is_asked_for(fit: Fit) -> None:
    hosts = {"a": host(0), "b": host(0, name=A100)}
    code, said, _ = fit(hosts, "--json", "--gpu-type", "a100-80gb")
    assert (code, said["placement"][0]["host"], said["hosts"][1]["reason"]) == (
        0,
        "b",
        "has no GPU that the job can use",
    )
    code, said, _ = fit(hosts, "--json")
    needs = {each["name"]: each["device_bytes"] for each in said["hosts"]}
    assert sorted(needs) == [A100, H100]
    assert needs[A100] != needs[H100]  # the context depends on the card


def test_a_more_accurate_estimate_of_one_card_moves_the_others(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {"a": host(0), "b": host(0, name=A100)}
    plain = {each["name"]: each["device_bytes"] for each in fit(hosts, "--json")[1]["hosts"]}
    asked = []

    def higher(options: Any, loaded: Any, gpu: Any, *_: Any, **__: Any) -> Any:
        asked.append(gpu.name)
        return replace(shifted(quick_estimator(loaded.job, gpu=gpu)(loaded.job), 5 * GIB), method="traced")

    monkeypatch.setattr("vramtop.tui.cli.fitting.fleet_check.estimate_job", higher)
    found = {each["name"]: each["device_bytes"] for each in fit(hosts, "--json")[1]["hosts"]}
    assert found == {name: size + 5 * GIB for name, size in plain.items()}
    assert len(asked) == 1


def test_ranks_are_spread_over_hosts(fit: Fit) -> None:
    code, text, _ = fit({"a": host(0, 0), "b": host(0, 0)}, "--fsdp", "4")
    assert code == 0
    assert re.search(r"needs 4 × \S+ GiB: fits on a \(GPU 0, 1\), b \(GPU 0, 1\)", text)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--gpu", "0"), "--gpu cannot be combined with --host, which"),
        (("--gpu-memory", "24"), "--gpu-memory cannot be combined with"),
        (("--wait",), "--wait cannot be combined with"),
        (("--slurm",), "--slurm cannot be combined with"),
        (("--prometheus", "http://localhost:1"), "--host and --hosts read hosts over ssh"),
    ],
)
def test_options_of_one_machine_are_refused(fit: Fit, words: tuple[str, ...], complaint: str) -> None:
    code, _, err = fit({"a": host(0)}, *words)
    assert code == 2
    assert complaint in err or complaint.replace("--host", "--prometheus") in err


def test_files_of_a_prometheus_need_its_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *JOB, "--prometheus-token-file", "x"]) == 2
    assert "need --prometheus URL" in capsys.readouterr().err
    assert main(["wait", *JOB, "--prometheus", "http://x"]) == 2


def test_a_job_is_judged_over_hosts_by_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--host", "a", "--job", "a.toml"]) == 2
    assert "vramtop fit a.toml --host" in capsys.readouterr().err
