"""``vramtop export``: mistakes are one sentence, and the command in a process of its own with a fake driver."""

import json
import signal
import sys
from pathlib import Path

import pytest
import yaml
from builders import make_gpu, make_snapshot
from command_line import vramtop
from exporter import samples
from waiting import until

from vramtop.monitor.snapshot.figures import Fault
from vramtop.monitor.snapshot.snapshot import GpuReading
from vramtop.tui.cli.commands.export import _Log, _whole_faults

GIB = 2**30


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--listen", "nonsense"], "--listen nonsense: give HOST:PORT"),
        (["--job", "none.toml"], "none.toml"),
        (["--listen", "0", "--", "python", "train.py"], "takes no launch line"),
        (["--interval", "0"], "--interval"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], sentence: str, in_folder: Path) -> None:
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
    assert not list(in_folder.iterdir())


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
