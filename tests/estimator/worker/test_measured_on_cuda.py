"""What a measurement asks of CUDA, by a stub of torch.cuda: device, limits, counters; a rank out of memory reports."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramtop.estimator.worker.measure import run_script  # noqa: E402
from vramtop.estimator.worker.request.protocol import RefusedError  # noqa: E402

GIB = 2**30
OutOfMemoryError = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError


class Card:
    """A GPU of 80 GiB as torch.cuda shows it; whoever allocates on it runs out of memory."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.free = 60 * GIB
        self.peak = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cuda = torch.cuda
        for name, answer in {
            "is_available": lambda: True,
            "current_device": lambda: 1,
            "set_device": lambda index: self.calls.append(("set_device", index)),
            "synchronize": lambda: None,
            "empty_cache": lambda: self.calls.append("empty_cache"),
            "mem_get_info": lambda: (self.free, 80 * GIB),
            "memory_reserved": lambda: 0,
            "memory_allocated": lambda: 7 * GIB,
            "max_memory_allocated": lambda: self.peak,
            "max_memory_reserved": lambda: self.peak + GIB,
            "reset_peak_memory_stats": lambda: self.calls.append("reset"),
            "memory_stats": lambda: {"num_alloc_retries": 2, "reserved_bytes.all.current": 8 * GIB, "other": 1},
            "get_allocator_backend": lambda: "native",
            "set_per_process_memory_fraction": lambda share: self.calls.append(("fraction", share)),
        }.items():
            monkeypatch.setattr(cuda, name, answer)
        monkeypatch.setattr(cuda.memory, "_snapshot", lambda: {"allocator_settings": {"expandable_segments": False}})
        monkeypatch.setattr(torch, "ones", lambda *_, device: self.calls.append(("context", device)))


class Stages:
    """Takes note of the stages, and answers at once."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def wait(self, stage: str, _figures: dict[str, Any]) -> None:
        self.seen.append(stage)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    made = Card()
    made.install(monkeypatch)
    return made


@pytest.mark.parametrize(
    ("limit", "keep", "share"),
    [(None, None, None), (None, GIB, 59 / 80), (40 * GIB, GIB, 40 / 80), (100 * GIB, None, 1.0)],
)
def test_the_allocator_may_take_what_is_free(limit, keep, share, card, monkeypatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    stages = Stages()
    run_script._start_counting({"device": "cuda", "limits": [limit], "keeps": [keep]}, 0, stages)  # type: ignore[arg-type]
    assert card.calls[:3] == [("set_device", 1), ("context", "cuda"), "empty_cache"]
    assert card.calls[3:] == ([] if share is None else [("fraction", share)])
    assert stages.seen == ["context"]


def test_a_gpu_that_others_have_filled_meanwhile_is_refused(card: Card) -> None:
    card.free = GIB
    with pytest.raises(RefusedError, match="another program has taken the rest"):
        run_script._start_counting({"device": "cuda", "limits": [None], "keeps": [2 * GIB]}, 0, Stages())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error", ["torch.cuda.OutOfMemoryError('CUDA out of memory.')", "RuntimeError('out of memory')"]
)
def test_a_rank_out_of_memory_reports(error: str, card: Card, in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["test"])
    (in_folder / run_script.SCRIPT).write_text(f"import torch\nraise {error}\n")
    card.peak = 9 * GIB
    plan = {"folder": str(in_folder), "device": "cuda", "limits": [None], "keeps": [None], "steps": 1, "trains": True}
    found = run_script.run_script(plan, Stages())  # type: ignore[arg-type]
    assert found["out_of_memory"]["phase"] == "loading"
    assert found["out_of_memory"]["allocated_bytes"] == 7 * GIB
    assert found["peaks"] == [{"step": 0, "phase": "loading", "allocated": 9 * GIB, "reserved": 10 * GIB}]
    assert found["retries"] == 2
    assert found["allocator"] == {
        "backend": "native",
        "settings": {"expandable_segments": False},
        "counters": {"num_alloc_retries": 2, "reserved_bytes.all.current": 8 * GIB},
    }
