"""What start-up loads: a look into ``sys.modules`` of fresh interpreters."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "accelerate", "peft", "numpy")

DASHBOARD = """
import asyncio
from vramtop.estimator.methods import estimate
from vramtop.monitor.demo import demo_source
from vramtop.monitor.watch import Watchlist
from vramtop.tui.app import VramtopApp

async def main():
    app = VramtopApp(demo_source(), Watchlist(estimate))
    async with app.run_test(size=(120, 40)) as pilot:
        while app.board is None:
            await pilot.pause(0.02)

asyncio.run(main())
"""
CLOSED_FORM = """
from vramtop.estimator.methods import estimate
from vramtop.estimator.job import Job, ModelSpec
estimate(Job(model=ModelSpec(id="gpt2")))
"""
ONCE = """
from vramtop.tui.cli import main
assert main(["--once"]) in (0, 3)
"""
DOCTOR = """
from vramtop.tui.cli import main
assert main(["doctor"]) in (0, 3)
"""
ESTIMATE = """
from vramtop.tui.cli import main
assert main(["estimate", "gpt2", "--method", "formula"]) == 0
"""


def loaded(program: str) -> set[str]:
    """Top-level modules that a program has loaded at its end."""
    look = "\nimport sys\nprint('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", program + look], capture_output=True, text=True, check=True, timeout=60
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("LOADED"))
    return set(line.split()[1:])


@pytest.mark.parametrize(
    ("program", "never"),
    [
        (DASHBOARD, (*HEAVY, "yaml")),
        (CLOSED_FORM, (*HEAVY, "textual", "rich", "psutil", "pynvml", "yaml")),
        (ONCE, (*HEAVY, "textual", "rich", "yaml")),
        (ESTIMATE, (*HEAVY, "textual", "rich", "yaml")),
        (DOCTOR, (*HEAVY, "textual", "rich", "yaml")),
    ],
    ids=["dashboard", "closed form", "once", "estimate", "doctor"],
)
def test_what_is_slow_to_import_stays_out(program: str, never: tuple[str, ...]) -> None:
    assert loaded(program).isdisjoint(never)


def test_the_look_into_the_modules_would_see_them() -> None:
    assert "textual" in loaded(DASHBOARD)
    assert "yaml" in loaded("import yaml")


@pytest.mark.parametrize("module", ["vramtop.tui.app, vramtop.tui.commands.dashboard", "vramtop.tui.commands.once"])
def test_the_arithmetic_is_loaded_when_there_is_a_job(module: str) -> None:
    program = f"import sys, {module}\nprint('vramtop.estimator.closed_form' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
