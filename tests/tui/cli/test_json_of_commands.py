"""JSON of commands, held to the published schemas: many kinds of jobs and readings, and errors, which print none."""

import json
from pathlib import Path

import psutil
import pytest
from builders import ScriptedSource, make_gpu, make_mig_gpu, make_process, make_run, make_snapshot, make_watchlist
from command_line import vramtop
from json_schemas import require_valid, valid_json

from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.fleet.board_reading import reading_of_board
from vramtop.monitor.fleet.fleet import Fleet, RankFacts
from vramtop.monitor.fleet.stream_line import stream_line
from vramtop.monitor.probe.probe_reader import DeviceCounters, ProbeSample
from vramtop.monitor.snapshot.figures import NO_ANSWER, Fault
from vramtop.monitor.snapshot.snapshot import GpuReading, ProcessCounters, Snapshot
from vramtop.monitor.storage.reservations import Reservations
from vramtop.tui.cli.board_json import board_json
from vramtop.tui.cli.commands import attach
from vramtop.tui.cli.commands.fleet import fleet_json

JOBS = {
    "full": ("gpt2",),
    "qlora": ("llama-3.1-8b", "--qlora", "--activation-checkpointing", "full"),
    "fsdp": ("llama-3.1-8b", "--fsdp", "8", "--pure-bf16", "--cpu-offload", "all"),
    "pipeline": ("llama-3.1-8b", "--pipeline", "4", "--pure-bf16"),
    "experts": ("mixtral-8x7b", "--zero", "3", "--data-shard", "8"),
    "encoder": ("google-bert/bert-base-uncased", "--sequence-length", "128"),
    "generation": ("gpt2", "--mode", "inference"),
    "served": ("llama-3.1-8b", "--mode", "inference", "--set", "inference.engine=vllm"),
    "rollout": ("gpt2", "--set", "rollout.engine=vllm"),
    "unsure": ("gpt2", "--set", "unsure.activations=more", "--set", "software.torch=2.6"),
}


def run(*words: str, code: int | None = 0) -> str:
    return vramtop(*words, "--json", code=code).out


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in ("experts", "fsdp") else name for name in JOBS]
)
def test_estimates_of_many_kinds(name: str) -> None:
    found = valid_json("estimate", run("estimate", *JOBS[name], "--method", "formula"))
    assert found["peak"]["low_bytes"] <= found["peak"]["device_bytes"] <= found["peak"]["high_bytes"]
    assert ("stages" in found, "serving" in found) == (name == "pipeline", name == "served")
    assert ("effective_batch" in found) == (found["job"]["training"]["mode"] == "train")


@pytest.mark.parametrize("name", ["served", pytest.param("qlora", marks=pytest.mark.slow)])
def test_fits_on_a_described_machine(name: str) -> None:
    words = ("--method", "formula", "--gpu-memory", "24GiB", "--host-memory", "1GiB")
    found = valid_json("fit", run("fit", *JOBS[name], *words, code=None))
    assert ("serving" in found) == (name == "served")
    assert found["host"]["verdict"] == "does_not_fit"
    assert found["cards"] is None


@pytest.fixture
def machine() -> Snapshot:
    """GPUs of many kinds: with a job, with unknown figures, lost, in MIG mode, without processes that can be read."""
    counters = ProcessCounters(time=1_999.0, allocated_bytes=2**30, steps=7, step_seconds=0.5, error="OutOfMemoryError")
    hidden = {"user": None, "command": None, "start_time": None}
    busy = [make_process(1, 61, counters=counters), make_process(2, None, **hidden)]
    hangs = Fault(field=None, code=NO_ANSWER, message="the driver hangs")
    unread = GpuReading(index=2, uuid=None, name=None, faults=(hangs,))
    mig = make_mig_gpu(3, [make_process(5, 12, gpu_instance=3, compute_instance=1)])
    unlisted = replace(make_gpu(1), processes=None, power_w=None)
    found: Snapshot = make_snapshot([make_gpu(0, busy), unlisted, unread, mig], faults=(hangs,))
    return found


@pytest.fixture
def watchlist() -> Watchlist:
    job = Job(name="sft", model=ModelSpec(id="meta-llama/Llama-3.1-8B"))
    run = make_run(job, 1, missing=("training.micro_batch",))
    return make_watchlist(run, pending=[Job(name="next", model=job.model)])


def test_readings_with_faults_mig_devices_jobs_and_unknown_figures(machine: Snapshot, watchlist: Watchlist) -> None:
    board = watchlist.update(machine)
    found = json.loads(json.dumps(board_json(board)))
    require_valid("once", found)
    assert [gpu["used_bytes"] is None for gpu in found["gpus"]] == [False, False, True, False]
    assert found["gpus"][1]["processes"] is None
    assert len(found["gpus"][3]["mig"]) == 3
    assert (len(found["runs"]), len(found["pending"]), len(found["faults"])) == (1, 1, 1)


def test_the_same_over_hosts_and_as_a_line_of_a_stream(machine: Snapshot, watchlist: Watchlist) -> None:
    board = watchlist.update(machine)
    facts = RankFacts(rank=0, world_size=16, master="node01:29500")
    live = reading_of_board(board, host="a", facts_of=lambda *_: facts, interval=1.0, version="0.1.0")
    line = valid_json("stream", stream_line(live))
    assert [len(gpu.get("processes", ())) for gpu in line["gpus"]] == [2, 0, 0, 1]
    silent = type(live)(host="b", state="silent", reason="it sleeps", since=1_990.0)
    for hosts in ((live, silent), (silent,), ()):
        found = json.loads(json.dumps(fleet_json(Fleet(time=2_000.0, hosts=hosts))))
        require_valid("once-hosts", found)
        assert (found["totals"]["free_bytes"] is None) == (live not in hosts)


def test_waiting_ends_with_the_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in (
        "fitting.machine_gpus",
        "commands.wait",
    ):  # all users of the machine share the folder of reservations
        monkeypatch.setattr(f"vramtop.tui.cli.{module}.Reservations", lambda: Reservations(tmp_path / "promises"))
    words = ("wait", "gpt2", "--method", "formula")
    for free, code, verdict in ((79, 0, "fits"), (1, 1, "does_not_fit")):  # with less, its use is watched for 10 s
        looks = [make_snapshot([make_gpu(0, free_bytes=free * 2**30)])]
        monkeypatch.setattr(
            "vramtop.tui.cli.fitting.machine_gpus.NvmlSource", lambda looks=looks: ScriptedSource(looks)
        )
        more = () if code == 0 else ("--timeout", "0.1")
        assert valid_json("fit", run(*words, *more, code=code))["verdict"] == verdict


def test_a_recording(machine: Snapshot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("vramtop.tui.cli.commands.record.NvmlSource", lambda: ScriptedSource([machine]))
    file = str(tmp_path / "run.jsonl")
    recorded = valid_json("record", run("record", file, "--interval", "0.1", "--seconds", "0.5", "--no-attach"))
    assert recorded["file"] == file
    assert len(Path(file).read_bytes().splitlines()) == recorded["snapshots"] + 1


def test_a_run_with_the_probe_that_is_over_its_budget(monkeypatch: pytest.MonkeyPatch, start_script) -> None:
    device = DeviceCounters(index=0, uuid="a", allocated_bytes=2**30, reserved_bytes=2**31, retries=0)
    sample = ProbeSample(pid=1, time=2_000.0, devices=(device,), steps=7, step_began=None, step_seconds=0.5)
    read = attach.read_run
    monkeypatch.setattr(attach, "read_run", lambda *args, **more: replace(read(*args, **more), probe=sample))
    flags = ("--model_name_or_path", "gpt2", "--per_device_train_batch_size", "4", "--bf16", "--max_length", "512")
    child = start_script(*flags)
    held = make_process(child.pid, 30, start_time=psutil.Process(child.pid).create_time())
    looks = [make_snapshot([make_gpu(0, [held])])]
    monkeypatch.setattr(attach, "NvmlSource", lambda: ScriptedSource(looks))
    words = ("--set", "training.sequence_length=512", "--method", "formula")
    found = valid_json("attach", run("attach", str(child.pid), *words))
    assert (found["probe"], found["counters"][0]["reserved_bytes"], found["status"]) == (True, 2**31, "over")
    assert found["observed_bytes"] == 30 * 2**30
    assert found["explanation"][0]["changes"]
