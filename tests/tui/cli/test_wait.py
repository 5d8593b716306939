import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import FakeClock, NoDriver, make_budget, make_gpu, make_mig_gpu, make_snapshot
from command_line import vramtop

from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.readers.source.evidence import DeviceChoice
from vramtop.monitor.board.capacity import device_capacities
from vramtop.monitor.board.fit import check_fit
from vramtop.monitor.board.fit_result import FitResult
from vramtop.monitor.storage.reservations import Reservations
from vramtop.tui.cli.commands.wait import Stillness, exec_program, program_to_start, wait_until_it_fits
from vramtop.tui.cli.main import build_parser


def judged(*free: float) -> Callable[[], FitResult]:
    """Return what judges a job of 40 GiB on this free memory at each reading; the last repeats."""
    looks = [make_snapshot([make_gpu(0, free_bytes=round(size * GIB))]) for size in free]

    def judge() -> FitResult:
        snapshot = looks.pop(0) if len(looks) > 1 else looks[0]
        return check_fit(make_budget(), device_capacities(snapshot, {}))

    return judge


def wait(judge: Callable[[], FitResult], promises: Reservations, **more: Any) -> FitResult:
    given = {"interval": 2.0, "timeout": None, "starts": False, "report": lambda _: None}
    return wait_until_it_fits(judge, "job", reservations=promises, **{**given, **more})


def test_waiting_ends_when_the_job_fits_and_prints_each_reason_once(tmp_path: Path) -> None:
    clock, said, promises = FakeClock(0.0), list[str](), Reservations(tmp_path / "promises")
    found = wait(judged(10, 10, 41, 70), promises, report=said.append, sleep=clock.advance, clock=clock)
    assert (found.verdict, clock.time) == ("fits", 6.0)
    assert [sentence.partition(";")[0].partition(":")[0] for sentence in said] == ["waiting", "waiting"]
    assert "is 30" in said[0]
    assert "expected to fit" in said[1]
    (promise,) = promises.active()
    assert promise.pid == os.getppid()  # the parent of this process starts the job
    assert promise.until is not None
    assert promise.gpus == {"GPU-00000000": needed_bytes(found)}


def needed_bytes(found: object) -> int:
    return found.gpus[0].need_bytes  # type: ignore[attr-defined,no-any-return]


def test_the_reservation_of_an_exec_program_lasts_as_long_as_its_process(tmp_path: Path) -> None:
    promises = Reservations(tmp_path / "promises")
    wait(judged(70), promises, starts=True)
    (promise,) = promises.active()
    assert (promise.pid, promise.until) == (os.getpid(), None)


def test_the_timeout_ends_with_the_last_verdict(tmp_path: Path) -> None:
    clock, promises = FakeClock(0.0), Reservations(tmp_path / "promises")
    found = wait(judged(10), promises, timeout=5, sleep=clock.advance, clock=clock)
    assert (found.verdict, clock.time) == ("does_not_fit", 5.0)
    assert promises.active() == ()


RACER = """
import sys, time
from pathlib import Path
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.estimation import estimate
from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.board.capacity import device_capacities
from vramtop.monitor.board.fit import check_fit
from vramtop.monitor.storage.reservations import Reservations
from vramtop.monitor.snapshot.snapshot import GpuReading, Snapshot, Source
from vramtop.tui.cli.commands.wait import wait_until_it_fits

budget = estimate(Job(model=ModelSpec(id="gpt2")))
free = budget.peak.high_bytes * 3 // 2
gpu = GpuReading(index=0, uuid="GPU-0", name="card", total_bytes=80 * GIB, free_bytes=free, processes=())
snapshot = Snapshot(time=time.time(), source=Source(kind="nvml"), gpus=(gpu,))
promises = Reservations(Path(sys.argv[1]))
judge = lambda: check_fit(budget, device_capacities(snapshot, promises.committed(snapshot)))
found = wait_until_it_fits(judge, "gpt2", interval=0.05, timeout=2.0, starts=True, reservations=promises)
print(found.verdict, flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_two_jobs_waiting_for_the_same_gpu_start_one_after_the_other(start_program, tmp_path: Path) -> None:
    line = [sys.executable, "-c", RACER, str(tmp_path / "promises")]
    racers = [start_program(line) for _ in range(3)]
    answers = [racer.stdout.readline().strip() for racer in racers]
    assert sorted(answers) == ["does_not_fit", "does_not_fit", "fits"]
    winner = racers[answers.index("fits")]
    winner.kill()
    winner.wait()
    assert start_program(line).stdout.readline().strip() == "fits"


@pytest.mark.parametrize(
    ("words", "launch", "program"),
    [
        (["wait", "gpt2", "--exec", "true", "--x", "1"], None, ("true", "--x", "1")),
        (["wait", "--exec"], ["true", "-m", "a"], ("true", "-m", "a")),
        (["wait", "gpt2"], None, ()),
    ],
)
def test_the_program_to_start(words: list[str], launch: list[str] | None, program: tuple[str, ...]) -> None:
    assert program_to_start(build_parser().parse_args(words), launch) == program


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["wait", "gpt2", "--exec"], "--exec: give the command to start"),
        (["wait", "gpt2", "--exec", "no-such-program"], "no-such-program: no such program"),
        (["wait", "gpt2", "--gpu-memory", "80GiB"], "vramtop wait waits for GPUs of this machine"),
    ],
)
def test_invalid_options_are_rejected_at_once(words: list[str], sentence: str) -> None:
    assert sentence in vramtop(*words, code=2).err


def test_without_a_gpu_nobody_is_told_to_give_what_waiting_refuses(monkeypatch) -> None:
    monkeypatch.setattr("vramtop.tui.cli.fitting.machine_gpus.NvmlSource", NoDriver)
    err = vramtop("wait", "gpt2", "--method", "formula", code=3).err
    assert err == ("vramtop: there is no driver; vramtop fit with --gpu-type or --gpu-memory checks another machine\n")


def test_a_mig_device_is_reserved_and_passed_to_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, str] = {}
    monkeypatch.setattr(os, "execvpe", lambda _file, _words, environ: started.update(environ))
    promises = Reservations(tmp_path / "promises")
    snapshot = make_snapshot([make_mig_gpu(0, free=(39, 10)), make_mig_gpu(1, free=(10, 19))])
    budget = estimate(Job(model=ModelSpec(id="gpt2")))
    found = wait(lambda: check_fit(budget, device_capacities(snapshot, {})), promises, starts=True)
    exec_program(("true",), found)
    assert started["CUDA_VISIBLE_DEVICES"] == "MIG-0-3-0"
    started.clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    exec_program(("true",), found, DeviceChoice(origin="train.py line 1", text="cuda:1", index=1))
    assert started["CUDA_VISIBLE_DEVICES"] == "0,1"  # the second of these, as the script says
    (promise,) = promises.active()
    assert promise.gpus == {"MIG-0-3-0": budget.peak.device_bytes}
    assert promises.committed(snapshot) == {(0, 3): budget.peak.device_bytes}


def test_a_job_is_not_started_beside_one_that_grows(tmp_path: Path) -> None:
    clock, said, stillness = FakeClock(0.0), list[str](), Stillness()

    def judge() -> FitResult:
        left = 75 - min(clock.time, 20) / 40  # grows by 1.5 GiB a minute, and then no more
        gpu = make_gpu(0, free_bytes=round(left * GIB))
        return check_fit(make_budget(), stillness.mark(device_capacities(make_snapshot([gpu]), {}), clock.time))

    found = wait(judge, Reservations(tmp_path / "promises"), report=said.append, sleep=clock.advance, clock=clock)
    assert (found.verdict, clock.time) == ("fits", 30.0)
    assert [sentence.partition("now; ")[2] for sentence in said] == [
        "vramtop checks for 10 s whether memory use on GPU 0 is growing",
        "memory use on GPU 0 is growing",
    ]


def test_an_empty_gpu_is_taken_at_once(tmp_path: Path) -> None:
    clock, stillness = FakeClock(0.0), Stillness()
    gpus = [make_gpu(0, free_bytes=60 * GIB), make_gpu(1, free_bytes=79 * GIB)]

    def judge() -> FitResult:
        return check_fit(make_budget(), stillness.mark(device_capacities(make_snapshot(gpus), {}), clock.time))

    found = wait(judge, Reservations(tmp_path / "promises"), sleep=clock.advance, clock=clock)
    assert (found.verdict, found.placement, clock.time) == ("fits", (1,), 0.0)
