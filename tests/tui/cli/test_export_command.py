"""``vramtop export``: mistakes are one sentence, and the command in a process of its own with a fake driver."""

import json
import signal
import sys
from pathlib import Path

import pytest
import yaml
from builders import make_gpu, make_snapshot
from command_line import vramtop
from exporter import samples, scrape
from waiting import until

from vramtop.monitor.snapshot.faults import Fault
from vramtop.monitor.snapshot.snapshot import GpuReading
from vramtop.tui.cli.commands.export import _Log, _whole_faults

GIB = 2**30


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--listen", "nonsense"], "--listen nonsense: give HOST:PORT"),
        (["--tls-cert", "a.pem"], "--tls-cert and --tls-key go together"),
        (["--tls-cert", "a.pem", "--tls-key", "a.key"], "--tls-cert a.pem, --tls-key a.key: No such file"),
        (["--client-ca", "a.pem"], "--client-ca needs --tls-cert"),
        (["--auth-user", "prom"], "--auth-user needs a password"),
        (["--password-file", "pw"], "--password-file needs --auth-user"),
        (["--auth-user", "prom", "--password-file", "none"], "--password-file none: No such file"),
        (["--job", "none.toml"], "none.toml"),
        (["--listen", "0", "--", "python", "train.py"], "takes no launch line"),
        (["--interval", "0"], "--interval"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], sentence: str, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VRAMTOP_EXPORT_PASSWORD", raising=False)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    hook = sys.modules["threading"].excepthook  # type: ignore[attr-defined]
    try:
        output = vramtop("export", *words, code=2)
    finally:
        sys.modules["threading"].excepthook = hook  # type: ignore[attr-defined]
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert output.out == ""
    assert sentence in output.err
    assert output.err.count("\n") == 1
    assert "secret" not in output.err
    assert not list(tmp_path.iterdir())


def test_rules_and_dashboard_are_printed() -> None:
    assert yaml.safe_load(vramtop("export", "--print-rules", code=0).out)["groups"]
    assert json.loads(vramtop("export", "--print-dashboard", code=0).out)["panels"]


def test_a_fault_is_said_once_while_it_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    def lost(seconds: int) -> GpuReading:
        return make_gpu(1, faults=(Fault(field=None, code="NO_ANSWER", message=f"has not answered for {seconds} s"),))

    refused = Fault(field="power_w", code="NOT_SUPPORTED", message="no power")
    log = _Log()
    for gpus in ([lost(1)], [lost(2), make_gpu(2, faults=(refused,))], [make_gpu(1)], [lost(5)]):
        log.faults(_whole_faults(make_snapshot(gpus)))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"vramtop: GPU 1: has not answered for {seconds} s" for seconds in (1, 5)]


def test_it_serves_until_it_is_interrupted(export) -> None:
    exporter = export("--listen", "0", "--json", "--no-attach").started()
    assert exporter.url.startswith("http://127.0.0.1:")
    until(lambda: samples(exporter.scrape(), "vramtop_gpu_memory_used_bytes"))
    labels = {"uuid": "GPU-0", "index": "0"}
    assert samples(exporter.scrape(), "vramtop_gpu_memory_used_bytes") == [(labels, 20 * GIB)]
    assert exporter.end(signal.SIGINT) == 0


@pytest.mark.slow
def test_a_driver_that_goes_and_comes_back(export) -> None:
    exporter = export("--listen", "0", "--json", "--no-attach", "--interval", "0.2", gpus=None).started()
    until(lambda: samples(exporter.scrape(), "vramtop_gpu_memory_used_bytes"))
    exporter.show(None)
    until(lambda: samples(exporter.scrape(), "vramtop_sampler_up") == [({}, 0)])
    text = exporter.scrape()
    assert not samples(text, "vramtop_gpu_memory_used_bytes")
    assert samples(text, "vramtop_host_fault") == [({"reason": "NO_DRIVER"}, 1)]
    exporter.show([{"used_gib": 30, "processes": {}}])
    until(lambda: [value for _, value in samples(exporter.scrape(), "vramtop_gpu_memory_used_bytes")] == [30 * GIB])


@pytest.mark.slow
def test_other_addresses_than_loopback_are_warned_of(export) -> None:
    exporter = export("--listen", "0.0.0.0:0", "--json", "--no-attach").started()
    exporter.process.send_signal(signal.SIGTERM)
    _, errors = exporter.process.communicate(timeout=60)
    assert "0.0.0.0 is not loopback: anyone who can reach this address sees names" in errors
    assert "metrics at http://0.0.0.0:" in errors


@pytest.mark.slow
def test_passwords_are_not_in_the_command_line_nor_in_messages(export, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    words = ("--auth-user", "prom", "--password-file", str(file))
    exporter = export("--listen", "0", "--json", "--no-attach", *words).started()
    header = {"Authorization": "Basic cHJvbTpodW50ZXIy"}
    assert "vramtop_build_info" in scrape(exporter.url, **header)
    assert b"hunter2" not in Path(f"/proc/{exporter.process.pid}/cmdline").read_bytes()
    exporter.process.send_signal(signal.SIGTERM)
    assert "hunter2" not in "".join(exporter.process.communicate(timeout=60))


@pytest.mark.slow
def test_a_lost_gpu_runs_the_command_and_so_does_its_return(export, tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = f'echo "$VRAMTOP_ALERT $VRAMTOP_ALERT_STATE $VRAMTOP_GPU $VRAMTOP_GPU_UUIDS" >> {told}'
    words = ("--listen", "0", "--json", "--no-attach", "--interval", "0.1", "--on-alert", command)
    gpus = [{"used_gib": 20, "processes": {"1": 19.5}}]
    exporter = export(*words, gpus=gpus, environ={"CLOCK_SPEED": "600"}).started()
    until(lambda: samples(exporter.scrape(), "vramtop_gpu_memory_used_bytes"))
    exporter.show([{**gpus[0], "lost": True}])
    until(lambda: told.exists() and told.read_text() == "VramtopGpuLost firing 0 GPU-0\n")
    exporter.show(gpus)
    until(lambda: told.read_text().splitlines()[1:] == ["VramtopGpuLost resolved 0 GPU-0"])
    assert exporter.end() == 0


@pytest.mark.parametrize("words", [["--demo"], ["--once"], ["--once", "--host", "a"]])
def test_alerts_are_for_a_dashboard_of_now(words: list[str]) -> None:
    assert "--on-alert" in vramtop(*words, "--on-alert", "true", code=2).err
