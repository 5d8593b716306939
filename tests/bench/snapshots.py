"""Time and memory of ``vramtop explain`` on memory snapshots as torch dumps them.

As in torch's ``csrc/cuda/Module.cpp``: each frame stands in the file once, each allocation has a list of its own, and
an event's texts and pool are written out again for each.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

MILLION = 1_000_000
_FRAMES = 24
_STACKS = 1500
_SEGMENT_BLOCKS = 40
_LINES = (("torch/nn/modules/linear.py", "forward"), ("torch/optim/adamw.py", "_init_group"), ("train.py", "train"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSnapshot:
    """What reading a snapshot took, and may take."""

    name: str
    seconds: float
    """Processor time of the whole command."""
    peak_bytes: int
    max_seconds: float
    max_bytes: int


def measure_snapshots(folder: Path) -> Iterator[ReadSnapshot]:
    """Explain a snapshot of a million blocks, then one of a million events."""
    for name, counts, seconds, megabytes in (
        ("a million blocks", (MILLION, 0), 6.5, 265),
        ("a million events", (0, MILLION), 8.0, 265),
    ):
        file = folder / "snapshot.pickle"
        # in a process of its own: what a child's peak is counted from begins with its parent's memory
        subprocess.run([sys.executable, __file__, str(file), *map(str, counts)], check=True)
        command = [sys.executable, "-m", "vramtop.tui.cli", "explain", str(file), "--json"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        yield ReadSnapshot(
            name=f"explain, {name}",
            seconds=used.ru_utime + used.ru_stime,
            peak_bytes=used.ru_maxrss * 1024,
            max_seconds=seconds,
            max_bytes=megabytes * 10**6,
        )


def make_snapshot(blocks: int, events: int) -> dict[str, Any]:
    """Return a snapshot of one GPU, the same each time."""
    random = Random(1)  # noqa: S311 - data of a benchmark
    pool = [{"filename": f"/env/{file}", "line": line, "name": name} for line in range(400) for file, name in _LINES]
    stacks = [random.choices(pool, k=_FRAMES) for _ in range(_STACKS)]
    segments, address = [], 0x7F00_0000_0000
    for first in range(0, blocks, _SEGMENT_BLOCKS):
        made = []
        for _ in range(min(_SEGMENT_BLOCKS, blocks - first)):
            size, state = 512 * random.randrange(1, 4000), random.choice(("active_allocated",) * 9 + ("inactive",))
            frames = list(_stack(random, stacks))
            made.append(
                {"address": address, "size": size, "requested_size": size - 100, "state": state, "frames": frames}
            )
            address += size
        segments.append(_segment(made))
    return {"segments": segments, "device_traces": [list(_events(random, stacks, events, address))]}


def _stack(random: Random, stacks: list[list[Any]]) -> list[Any]:
    """Return one of the stacks: a few of them make most allocations."""
    return stacks[int(random.random() ** 3 * len(stacks))]


def _segment(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    total = sum(block["size"] for block in blocks)
    return {
        "device": 0,
        "address": blocks[0]["address"],
        "total_size": total,
        "allocated_size": total,
        "active_size": total,
        "requested_size": total,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _events(random: Random, stacks: list[list[Any]], count: int, address: int) -> Iterator[dict[str, Any]]:
    """Yield allocations, each freed a little later."""
    live: list[tuple[int, int, list[Any]]] = []
    for at in range(count):
        if at % 3 == 0:
            live.append((address, 512 * random.randrange(1, 4000), list(_stack(random, stacks))))
            address += 2**21
        place, size, frames = live[-1] if at % 3 == 0 else live[0] if at % 3 == 1 else live.pop(0)
        yield {
            "action": ("alloc", "free_requested", "free_completed")[at % 3],
            "addr": place,
            "size": size,
            "stream": 0,
            "time_us": 1_700_000_000_000_000 + 17 * at,
            "compile_context": "".join(("N/", "A")),  # a text of its own, as each event's is
            "user_metadata": f"step {at // 1000}",
            "pool_id": (0, at % 2),
            "frames": frames,
        }


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(pickle.dumps(make_snapshot(int(sys.argv[2]), int(sys.argv[3])), protocol=4))
