"""Draws the documentation's pictures: the real program on the demo recording, stopped at one second of it."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from drawing.demo_node import eight_gpus
from drawing.demo_program import Program, clean_machine, folder_and_names, open_cluster, open_program, text_of, trace
from drawing.terminal_svg import still

from vramtop.monitor.snapshot.snapshot import Snapshot
from vramtop.tui.background.job_estimates import EstimateFunction
from vramtop.tui.screens.step.screen import StepScreen

FOLDER, NAMES = folder_and_names()
SECOND = 132
"""Second of the recording at which one job is on budget, one is over, and one no longer fits."""


async def draw(
    name: str,
    size: tuple[int, int],
    act: Callable[[Program], Coroutine[Any, Any, None]],
    refine: EstimateFunction | None = None,
    snapshots: Sequence[Snapshot] | None = None,
) -> None:
    """Open the program, act as a user would, and save the screen."""
    async with open_program(size, refine, snapshots) as program:
        await program.play(SECOND if snapshots is None else len(snapshots) - 1)
        await act(program)
        save(name, program)


async def draw_cluster(name: str, size: tuple[int, int]) -> None:
    """Open the dashboard over many hosts, and save the screen."""
    async with open_cluster(size) as program:
        await program.shown("node05")
        save(name, program)


def save(name: str, program: Program) -> None:
    """Write what the program shows, as a picture, and print it as text."""
    screen = program.screen()
    (FOLDER / f"{name}.svg").write_text(still(screen, "vramtop"), encoding="utf-8")
    sys.stdout.write(f"{name}\n{text_of(screen)}\n")


async def nothing(_: Program) -> None:
    """Stay on the dashboard."""


async def unfold_a_run(program: Program) -> None:
    """Show the ranks of the run."""
    await program.press("down", "right")


async def check_a_job(program: Program, model: str = "qwen2.5-7b") -> None:
    """Open the fit check and type a model."""
    await program.press("f")
    await program.press(*model)
    await program.shown("Changes that make it fit")
    await program.settled(2)


async def attach_to_a_job(program: Program) -> None:
    """Attach to the job that is over its budget, and wait for the explanation."""
    await program.press("enter")
    await program.shown("if the micro-batch is")  # its last line
    await program.settled(3)


async def look_at_a_step(program: Program) -> None:
    """Open the step of the job that is on budget, and wait for its trace."""
    await program.press("down", "t")

    def is_traced() -> bool:
        screen = program.app.screen
        return isinstance(screen, StepScreen) and screen.budget.timeline is not None

    await program.until(is_traced, "the trace of the step", pause=0.1)
    await program.settled()


async def look_at_a_gpu(program: Program) -> None:
    """Open the GPU whose job is over its budget."""
    await program.press("g")


async def main() -> None:
    """Draw all pictures, or those that are named."""
    pictures = {
        "dashboard": lambda: draw("dashboard", (100, 33), nothing),
        "runs": lambda: draw("runs", (112, 31), unfold_a_run, snapshots=[eight_gpus(second) for second in range(8)]),
        "hosts": lambda: draw_cluster("hosts", (110, 34)),
        "attach": lambda: draw("attach", (100, 40), attach_to_a_job),
        "fit-check": lambda: draw("fit-check", (120, 32), check_a_job),
        "step": lambda: draw("step", (100, 32), look_at_a_step, trace),
        "gpu": lambda: draw("gpu", (100, 24), look_at_a_gpu),
    }
    async with clean_machine() as folder:
        os.chdir(folder)
        for name in NAMES or pictures:
            await pictures[name]()


if __name__ == "__main__":
    asyncio.run(main())
