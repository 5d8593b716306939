import json
from collections.abc import Callable
from typing import Any

import pytest

from vramtop.estimator.sizes import GIB
from vramtop.monitor.snapshot import GpuReading, Snapshot
from vramtop.tui.cli import main
from vramtop.tui.commands import fit

Answer = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def answer(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    scripted_source: Callable[..., object],
    make_snapshot: Callable[..., Snapshot],
    make_gpu: Callable[..., GpuReading],
) -> Answer:
    """The exit code, the JSON and the complaint of ``vramtop fit gpt2`` on a machine with so much free on each GPU."""

    def ask(*words: str, free: tuple[float, ...] = (10, 70, 70), visible: str | None = None) -> Any:
        snapshot = make_snapshot([make_gpu(n, free_bytes=round(size * GIB)) for n, size in enumerate(free)])
        monkeypatch.setattr(fit, "NvmlSource", lambda: scripted_source([snapshot]))
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        code = main(["fit", "gpt2", "--method", "formula", "--json", *words])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else {}, err

    return ask


def test_the_roomiest_of_the_visible_gpus_is_taken(answer: Answer) -> None:
    code, said, _ = answer()
    assert (code, said["placement"], "notes" in said) == (0, [1], False)
    code, said, _ = answer(visible="2,0")
    assert (code, said["placement"], [gpu["index"] for gpu in said["gpus"]]) == (0, [2], [0, 2])
    assert said["notes"] == ["Only GPU 2, 0: CUDA_VISIBLE_DEVICES is '2,0'."]


def test_what_is_asked_for_wins_over_the_environment(answer: Answer) -> None:
    code, said, _ = answer("--gpu", "1", visible="0")
    assert (code, said["placement"]) == (0, [1])


def test_an_environment_that_names_no_gpu_is_a_mistake(answer: Answer) -> None:
    code, _, complaint = answer(visible="9")
    assert code == 2
    assert "CUDA_VISIBLE_DEVICES is '9', which names no GPU here" in complaint
