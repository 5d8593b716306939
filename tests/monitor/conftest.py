"""Fixtures of the monitor's tests: a scripted driver, a fake clock, the context of a check, and real processes."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest
from fake_driver import FakeDriver, FakeGpu, FakeMig, FakeProcess

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.trace.installed_packages import InstalledPackages, TorchBuild
from vramtop.monitor.board.fit.device_capacity import device_capacities
from vramtop.monitor.preflight.context.check_context import CheckContext
from vramtop.monitor.preflight.facts.hub_access import HubAccess
from vramtop.monitor.preflight.facts.job_interpreter import JobInterpreter
from vramtop.monitor.preflight.facts.machine import Machine
from vramtop.monitor.snapshot.snapshot import GpuReading


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """A driver without GPUs; append to its ``gpus``."""
    fake = FakeDriver()
    monkeypatch.setattr(pynvml, "nvmlLib", fake)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    yield fake
    fake.release()


@pytest.fixture
def fake_gpu() -> type[FakeGpu]:
    return FakeGpu


@pytest.fixture
def fake_mig() -> type[FakeMig]:
    return FakeMig


@pytest.fixture
def fake_process() -> type[FakeProcess]:
    return FakeProcess


class FakeClock:
    """A clock that stands still until it is advanced; calling it returns the time."""

    def __init__(self, time: float = 1000.0) -> None:
        self.time = time

    def __call__(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_context(
    tmp_path: Path, make_budget: Callable[..., Budget], make_gpu: Callable[..., GpuReading], make_snapshot: Any
) -> Callable[..., CheckContext]:
    """The context of a 40 GiB job on one empty 80 GiB GPU, in an empty folder and environment."""

    def make(job: Job | None = None, *, gpus: Sequence[GpuReading] | None = None, **changes: Any) -> CheckContext:
        job = job or Job(name="check", model=ModelSpec(config={"model_type": "llama"}))
        snapshot = make_snapshot([make_gpu()] if gpus is None else gpus)
        budget = make_budget(job)
        facts: dict[str, Any] = {
            "job": job,
            "machine": Machine(
                devices=device_capacities(snapshot, {}), snapshot=snapshot, capabilities=lambda: {0: (9, 0)}
            ),
            "environ": {"HOME": str(tmp_path)},
            "working_folder": tmp_path,
            "quick_budget": lambda: budget,
            "deepest_budget": lambda: budget,
            "interpreter": JobInterpreter(path=Path("/opt/env/bin/python"), origin="--python"),
            "packages": lambda: InstalledPackages(
                python="3.11.7", executable="python", versions={}, modules=(), requirements=()
            ),
            "torch_build": lambda: TorchBuild(version="2.13.0+cu128", cuda="12.8", architectures=("sm_80", "sm_90")),
            "hub_access": lambda: HubAccess(answer="open", message="the hub gives it", token_from=None),
        }
        return CheckContext(**(facts | changes))

    return make


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Return a function that starts a command in ``tmp_path``, waits for ``ready`` processes, and returns its pid."""
    started: list[subprocess.Popen[str]] = []

    def run(command: Sequence[str], *, ready: int = 1, **environ: str) -> int:
        inherited = {name: value for name, value in os.environ.items() if name not in ("HF_HOME", "WORLD_SIZE")}
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**inherited, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        said = ""
        while said.count("ready") < ready:  # two processes may write into each other's lines
            letter = process.stdout.read(1)
            assert letter, said
            said += letter
        return process.pid

    yield run
    for process in started:
        family = [*psutil.Process(process.pid).children(recursive=True), process] if process.poll() is None else []
        for member in family:
            member.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also children that were just being started
        process.wait()
        if process.stdout:
            process.stdout.close()  # not read to its end: a surviving child may keep it open


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that writes train.py and the folder of a small model beside it."""

    def write(text: str) -> str:
        (tmp_path / "train.py").write_text(text)
        (tmp_path / "tiny").mkdir()
        (tmp_path / "tiny" / "config.json").write_text('{"model_type": "llama", "dtype": "bfloat16"}')
        return "train.py"

    return write


@pytest.fixture
def flags() -> Callable[..., list[str]]:
    """Return a function that makes the flags of train.py, with changes or additions."""

    def words(**more: Any) -> list[str]:
        values = {"model_name_or_path": "tiny", "per_device_train_batch_size": 4, "max_length": 512, **more}
        return [word for name, value in values.items() for word in (f"--{name}", str(value))]

    return words
