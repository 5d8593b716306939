"""Rehearsals of programs that need more memory than the GPU has."""

import sys

import pytest
from rehearsed import rehearse
from slow_cases import quick_every

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.job.gpu_catalogue import find_gpu

pytest.importorskip("torch")

TRIES = """
import sys, torch, torch.nn as nn
net = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
def is_oom_error(error):
    return "out of memory" in str(error)
def train(size):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(3):
        net(torch.randn(size, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
def find(size):
    while size:
        try:
            return train(size)
        {handler}
        size //= 2
{call}
"""
CATCHING = {
    "its name": "except torch.cuda.OutOfMemoryError:\n            torch.cuda.empty_cache()",
    "its text": (
        "except RuntimeError as e:\n            if 'out of memory' in str(e): size += 0\n            else: raise"
    ),
    "a function": "except Exception as e:\n            if not is_oom_error(e): raise",
}
PASSING_ON = {
    "logged and raised": "except torch.OutOfMemoryError:\n            print('take a smaller batch')\n            raise",
    "ended": "except RuntimeError as e:\n            if 'out of memory' in str(e): sys.exit(1)",
    "any error": "except Exception as e:\n            print(e)",
    "finally": "finally:\n            print('out of memory?')",
}
TOO_LARGE = 2**20
"""Needs 16 GiB for its wide layer alone, more than 24 in all; an eighth of it fits."""


def _settled(program, text: str) -> int:
    """Return the peak of a program that begins with a size that is too large."""
    found = rehearse([sys.executable, program(text)], gpu=find_gpu("rtx-4090"))
    told = [each for each in found.warnings if "train.py:9 the program runs out of the GPU's memory" in each]
    assert len(told) == 1
    assert "16,384 MiB requested" in told[0]
    assert found.answer.peak_reserved < 24 << 30
    return found.allocated_bytes


@pytest.mark.parametrize("handler", quick_every(3, CATCHING.values()), ids=CATCHING)
def test_a_program_that_tries_smaller_sizes_gets_the_figure_of_the_first_that_fits(program, handler: str) -> None:
    fits = TRIES.format(handler="finally: pass", call=f"train({TOO_LARGE // 4})")
    expected = rehearse([sys.executable, program(fits)], gpu=find_gpu("rtx-4090")).allocated_bytes
    assert _settled(program, TRIES.format(handler=handler, call=f"find({TOO_LARGE})")) == expected


def test_a_program_that_runs_out_again_and_again_is_asked_for_a_size(program) -> None:
    handler = "except torch.cuda.OutOfMemoryError:\n            size *= 2"
    with pytest.raises(CannotTellError, match=r"at train\.py:9 .*16,384 MiB requested.* give it one size that fits"):
        rehearse(
            [sys.executable, program(TRIES.format(handler=handler, call=f"find({TOO_LARGE})"))],
            gpu=find_gpu("rtx-4090"),
        )


@pytest.mark.parametrize("handler", quick_every(3, CATCHING.values(), start=1), ids=CATCHING)
def test_a_program_that_might_try_larger_sizes_gets_its_figure_with_a_warning(program, handler: str) -> None:
    text = TRIES.format(handler=handler, call=f"find({TOO_LARGE // 8})")
    found = rehearse([sys.executable, program(text)], gpu=find_gpu("rtx-4090"))
    assert found.answer.peak_reserved < 24 << 30
    assert any("a larger size that it tries" in each for each in found.warnings)


@pytest.mark.parametrize("handler", quick_every(4, PASSING_ON.values(), start=2), ids=PASSING_ON)
def test_a_program_that_does_not_try_again_gets_its_full_figure(program, handler: str) -> None:
    text = TRIES.format(handler=handler, call=f"find({TOO_LARGE})")
    found = rehearse([sys.executable, program(text)], gpu=find_gpu("rtx-4090"))
    assert found.allocated_bytes > 48 << 30
    assert not any("catches errors" in each for each in found.warnings)


def test_accelerates_search_for_a_batch_size_is_followed(program) -> None:
    pytest.importorskip("accelerate")
    search = "from accelerate.utils import find_executable_batch_size\nfind_executable_batch_size(train, {})()"
    assert _settled(program, TRIES.format(handler="finally: pass", call=search.format(TOO_LARGE))) > 16 << 30
