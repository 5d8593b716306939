"""Records the README's tour, as an asciinema file and an animated picture: the real program on the demo recording.

A job starts, runs on budget, and leaves its budget; why; whether another job fits beside it, and what makes it fit.
"""

import asyncio
import sys

from drawing.asciicast import asciicast
from drawing.demo_program import clean_machine, folder_and_names, open_program, text_of
from drawing.terminal_svg import Cell, Frame, Screen, animation

FOLDER, _ = folder_and_names()
SIZE = (100, 32)
COMMAND = "vramtop --demo"
MODEL = "qwen2.5-3b"
LEAVES_BUDGET = 91


async def tour() -> list[Frame]:
    """Return the frames."""
    frames = [Frame(_prompt(typed), "vramtop", 0.5) for typed in ("", COMMAND)]
    async with open_program(SIZE) as program:

        async def show(title: str, seconds: float) -> None:
            frames.append(Frame(program.screen(), title, seconds))

        for second in (14, 30, 40, 58, 72):
            await program.play(second)
            await show("two jobs start and run within their budgets", 1.2)
        for second in (LEAVES_BUDGET, 104, 118, 132):
            await program.play(second)
            await show("one leaves its budget", 1.5)
        await program.press("enter")
        await program.shown("GiB if ")  # of the explanation, which is computed in the background
        await program.settled(3)
        await show("Enter: why?", 6)
        await program.press("escape")
        await program.press("f")
        await show("f: would another job fit?", 1)
        await program.press(*MODEL[:4])
        await show("f: would another job fit?", 0.7)
        await program.press(*MODEL[4:])
        await program.shown("Changes that make it fit")
        await program.settled(2)
        await show("f: would another job fit?", 5)
        await program.press("alt+1")
        await program.settled(2)
        await show("1: apply the first suggestion", 6)
    return frames


def _prompt(typed: str) -> Screen:
    """Return a shell's screen with a command."""
    text = f" $ {typed}".ljust(SIZE[0])
    blank = tuple(Cell() for _ in range(SIZE[0]))
    return (tuple(Cell(character) for character in text), *(blank for _ in range(SIZE[1] - 1)))


async def main() -> None:
    """Record the tour."""
    async with clean_machine():
        frames = await tour()
    poster = next(index for index, frame in reversed(list(enumerate(frames))) if "leaves" in frame.title)
    (FOLDER / "tour.cast").write_text(asciicast(frames, COMMAND), encoding="utf-8")
    (FOLDER / "tour.svg").write_text(animation(frames, poster), encoding="utf-8")
    for frame in frames[-3:]:
        sys.stdout.write(f"{text_of(frame.screen)}\n")


if __name__ == "__main__":
    asyncio.run(main())
