"""What a measurement asks of CUDA, by a stub of torch.cuda: device, limits, counters; a rank out of memory reports."""

from collections.abc import Iterator
from typing import Any

import pytest
from worker_requests import complete

torch = pytest.importorskip("torch")

from vramtop.estimator.worker.measure import real_steps  # noqa: E402
from vramtop.estimator.worker.request.protocol import RefusedError  # noqa: E402
from vramtop.estimator.worker.request.request import read_request  # noqa: E402

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


def request(**parallel: Any) -> Any:
    config = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 32}
    kind = {"task": "causal-lm", "attention": "sdpa", "device": "cuda"}
    return read_request(complete({"config": config, **kind, "parallel": parallel}))


@pytest.mark.parametrize(
    ("limit", "keep", "share"),
    [(None, None, None), (None, GIB, 59 / 80), (40 * GIB, GIB, 40 / 80), (100 * GIB, None, 1.0)],
)
def test_the_allocator_may_take_what_is_free(
    limit: int | None, keep: int | None, share: float | None, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    stages = Stages()
    real_steps._start_counting(request(), {"limits": [limit], "keeps": [keep]}, 0, stages)  # type: ignore[arg-type]
    assert card.calls[:3] == [("set_device", 1), ("context", "cuda"), "empty_cache"]
    assert card.calls[3:] == ([] if share is None else [("fraction", share)])
    assert stages.seen == ["context"]


def test_a_gpu_that_others_have_filled_meanwhile_is_refused(card: Card) -> None:
    card.free = GIB
    with pytest.raises(RefusedError, match="another program has taken the rest"):
        real_steps._start_counting(request(), {"limits": [None], "keeps": [2 * GIB]}, 0, Stages())  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [OutOfMemoryError("CUDA out of memory."), RuntimeError("NCCL: out of memory")])
def test_a_rank_out_of_memory_reports_and_does_not_wait_for_the_others(
    error: Exception, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed as dist

    groups: list[str] = []
    monkeypatch.setattr(dist, "init_process_group", groups.append)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: pytest.fail("this waits for the other ranks"))

    def fails(_request: Any, _device: Any) -> Any:
        card.peak = 9 * GIB
        raise error

    monkeypatch.setattr(real_steps, "placed_model", fails)
    plan = {"limits": [None] * 2, "keeps": [None] * 2, "steps": 1}
    found = real_steps.run_steps(request(strategy="ddp", data_replicate=2), plan, Stages())  # type: ignore[arg-type]
    assert groups == ["cpu:gloo,cuda:nccl"]
    assert found["out_of_memory"]["phase"] == "loading"
    assert found["out_of_memory"]["allocated_bytes"] == 7 * GIB
    assert found["peaks"] == [{"step": 0, "phase": "loading", "allocated": 9 * GIB, "reserved": 10 * GIB}]
    assert found["retries"] == 2
    assert found["allocator"] == {
        "backend": "native",
        "settings": {"expandable_segments": False},
        "counters": {"num_alloc_retries": 2, "reserved_bytes.all.current": 8 * GIB},
    }
