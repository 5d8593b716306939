"""What start-up loads: a look into ``sys.modules`` of fresh interpreters."""

import functools
import subprocess
import sys

import pytest


def command(words: str) -> str:
    """Return a program that runs vramtop with these words."""
    return f"from vramtop.tui.cli.main import main\nassert main({words.split()}) in (0, 3)\n"


HEAVY = ("torch", "transformers", "accelerate", "peft", "numpy", "prometheus_client")

DASHBOARD = """
import asyncio
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading, Snapshot, Source
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.cli.commands import dashboard

class OneGpu:
    def open(self): pass
    def close(self): pass
    def read(self):
        process = GpuProcess(pid=4711, start_time=None, used_bytes=2**30, kinds=("compute",))
        gpu = GpuReading(index=0, uuid="GPU-1", name="NVIDIA H100 80GB HBM3", total_bytes=80 * 2**30,
                         used_bytes=2**30, free_bytes=79 * 2**30, processes=(process,))
        return Snapshot(time=2000.0, source=Source(kind="nvml"), gpus=(gpu,))

async def main():
    app = VramtopApp(OneGpu(), Watchlist(None))
    async with app.run_test(size=(120, 40)) as pilot:
        while app.board is None:
            await pilot.pause(0.02)

asyncio.run(main())
"""
CLOSED_FORM = """
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job, ModelSpec
estimate(Job(model=ModelSpec(id="gpt2")))
"""
BEFORE_TEXTUAL = "from vramtop.tui.cli.commands import dashboard, fleet"
"""The commands set the variables that Textual reads when it is imported."""
ONCE = command("--once")
DOCTOR = command("doctor")
ESTIMATE = command("estimate gpt2 --method formula")
MODELS = command("models llama")
FIT_HELP = command("fit --help")


@functools.cache
def modules(program: str) -> frozenset[str]:
    """Modules that a program has loaded at its end."""
    look = "\nimport sys\nprint('LOADED', *sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program + look], capture_output=True, text=True, check=True, timeout=60
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("LOADED"))
    return frozenset(line.split()[1:])


def loaded(program: str) -> set[str]:
    """The same without what is inside packages."""
    return {name.partition(".")[0] for name in modules(program)}


@pytest.mark.parametrize(
    ("program", "never"),
    [
        (DASHBOARD, (*HEAVY, "yaml", "psutil")),
        (BEFORE_TEXTUAL, (*HEAVY, "textual", "yaml")),
        (CLOSED_FORM, (*HEAVY, "textual", "rich", "psutil", "pynvml", "yaml")),
        (ONCE, (*HEAVY, "textual", "rich", "yaml", "psutil", "platformdirs", "asyncio")),
        (ESTIMATE, (*HEAVY, "textual", "rich", "yaml")),
        (MODELS, (*HEAVY, "textual", "rich", "yaml", "psutil", "pynvml")),
        (DOCTOR, (*HEAVY, "textual", "rich", "yaml")),
    ],
    ids=["dashboard", "before textual", "closed form", "once", "estimate", "models", "doctor"],
)
def test_what_is_slow_to_import_stays_out(program: str, never: tuple[str, ...]) -> None:
    assert loaded(program).isdisjoint(never)


def test_help_loads_nothing_that_a_command_runs() -> None:
    """Only the job, whose fields it explains: it prints in a fifth of the time that the command takes to start."""
    known = ("vramtop.estimator.common", "vramtop.estimator.job", "vramtop.tui", "vramtop.monitor.host")
    others = [name for name in modules(FIT_HELP) if name.startswith(("vramtop.estimator.", "vramtop.monitor."))]
    assert not [name for name in others if not name.startswith(known)]
    assert not [name for name in modules(FIT_HELP) if name.startswith("vramtop.tui.cli.commands.")]
    assert loaded(FIT_HELP).isdisjoint((*HEAVY, "textual", "rich", "yaml", "psutil", "pynvml"))


@pytest.mark.parametrize("program", [DASHBOARD, ONCE], ids=["dashboard", "once"])
def test_the_estimator_is_loaded_when_there_is_a_job(program: str) -> None:
    """Without one, only how failures and sizes are said, files are opened, and secrets are masked."""
    loaded_of_it = {name for name in modules(program) if name.startswith("vramtop.estimator.")}
    assert {name for name in loaded_of_it if not name.startswith("vramtop.estimator.common")} == set()


@pytest.mark.parametrize(
    "name",
    [
        "board.fit",
        "board.comparison",
        "board.run_phases",
        "sources.recording",
        "attach.read_run",
        "attach.automatic.worker_client",
        "probe.publisher",
    ],
)
@pytest.mark.parametrize("program", [DASHBOARD, ONCE], ids=["dashboard", "once"])
def test_of_the_monitor_only_what_reads_is_loaded(program: str, name: str) -> None:
    assert f"vramtop.monitor.{name}" not in modules(program)


@pytest.mark.parametrize(
    "name", ["monitor.attach", "monitor.sources", "estimator.trace.traced_step", "estimator.trace.worker_process"]
)
def test_an_estimate_by_the_closed_form_loads_nothing_that_attaches_or_traces(name: str) -> None:
    assert not [module for module in modules(ESTIMATE) if f"{module}.".startswith(f"vramtop.{name}.")]
