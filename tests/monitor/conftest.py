"""Fixtures of the monitor's tests: a fake NVML driver, a fake clock, the context of a check, and real processes."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import FakeClock, make_budget, make_gpu, make_snapshot

from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.model.hub import Refusal
from vramtop.estimator.trace.installed_packages import InstalledPackages, TorchBuild
from vramtop.monitor.board.capacity import device_capacities
from vramtop.monitor.preflight.check import CheckContext
from vramtop.monitor.preflight.job_launch import JobInterpreter
from vramtop.monitor.preflight.machine import Machine
from vramtop.monitor.snapshot.snapshot import GpuReading


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_context(tmp_path: Path) -> Callable[..., CheckContext]:
    """Make the context of a 40 GiB job on one empty 80 GiB GPU, in an empty folder and environment."""

    def make(job: Job | None = None, *, gpus: Sequence[GpuReading] | None = None, **changes: Any) -> CheckContext:
        job = job or Job(name="check", model=ModelSpec(config={"model_type": "llama"}))
        snapshot = make_snapshot([make_gpu()] if gpus is None else gpus)
        budget = make_budget(job)
        facts: dict[str, Any] = {
            "job": job,
            "machine": Machine(devices=device_capacities(snapshot, {}), snapshot=snapshot),
            "environ": {"HOME": str(tmp_path)},
            "working_folder": tmp_path,
            "quick_budget": lambda: budget,
            "deepest_budget": lambda: budget,
            "interpreter": JobInterpreter(path=Path("/opt/env/bin/python"), origin="--python"),
            "packages": lambda: InstalledPackages(python="3.11.7", versions={}, modules=(), requirements=()),
            "torch_build": lambda: TorchBuild(version="2.13.0+cu128", cuda="12.8", architectures=("sm_80", "sm_90")),
            "hub_access": lambda: Refusal("open", "the hub gives it"),
        }
        return CheckContext(**(facts | changes))

    return make


@pytest.fixture
def start(tmp_path: Path, start_program: Callable[..., Any]) -> Callable[..., int]:
    """Start a command in ``tmp_path``, wait until ``ready`` processes have printed "ready", and return its pid."""

    def run(command: Sequence[str], *, ready: int = 1, **environ: str) -> int:
        inherited = {name: value for name, value in os.environ.items() if name not in ("HF_HOME", "WORLD_SIZE")}
        pipes = {"stdin": None, "stderr": subprocess.DEVNULL}
        process = start_program(command, cwd=tmp_path, env={**inherited, **environ}, **pipes)
        output = ""
        while output.count("ready") < ready:  # by character, since the lines of two processes may interleave
            letter = process.stdout.read(1)
            assert letter, output
            output += letter
        return process.pid

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Write train.py with this text and a folder ``tiny`` with a model config; return the name of the script."""

    def write(text: str) -> str:
        (tmp_path / "train.py").write_text(text)
        (tmp_path / "tiny").mkdir()
        (tmp_path / "tiny" / "config.json").write_text('{"model_type": "llama", "dtype": "bfloat16"}')
        return "train.py"

    return write


@pytest.fixture
def flags() -> Callable[..., list[str]]:
    """Make the command-line flags of train.py, with changes or additions."""

    def words(**more: Any) -> list[str]:
        values = {"model_name_or_path": "tiny", "per_device_train_batch_size": 4, "max_length": 512, **more}
        return [word for name, value in values.items() for word in (f"--{name}", str(value))]

    return words
