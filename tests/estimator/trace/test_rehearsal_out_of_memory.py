"""Rehearsals of programs that need more memory than the GPU has."""

import sys

import pytest
from rehearsed import rehearse, rehearse_beside_cpu
from slow_cases import first_quick, quick_every

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.job.gpu_catalogue import find_gpu

pytest.importorskip("torch")

TRIES = """
import sys, torch, torch.nn as nn
dev = sys.argv[1]
net = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).to(dev)
def train(size):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(3):
        net(torch.randn(size, 1024, device=dev)).square().mean().backward()
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
    "refused otherwise": "except Exception as e:\n            if not is_oom_error(e): raise",
}
PASSING_ON = {
    "logged and raised": "except torch.OutOfMemoryError:\n            print('take a smaller batch')\n            raise",
    "ended": "except RuntimeError as e:\n            if 'out of memory' in str(e): sys.exit(1)",
    "any error": "except Exception as e:\n            print(e)",
    "finally": "finally:\n            print('out of memory?')",
}
FITS = 2**20  # needs 16 GiB for its wide layer alone; half of it does not fit in 24 GiB either, a quarter does


@pytest.mark.parametrize("handler", quick_every(3, CATCHING.values()), ids=CATCHING)
def test_a_program_that_tries_sizes_gets_the_one_that_fits(program, handler: str) -> None:
    helper = "def is_oom_error(e): return 'CUDA out of memory. Tried to allocate' in str(e)\n"
    text = helper + TRIES
    tried = rehearse(
        [sys.executable, program(text.format(handler=handler, call=f"find({FITS})")), "cuda"], gpu=find_gpu("rtx-4090")
    )
    right = rehearse(
        [sys.executable, program(text.format(handler=handler, call=f"train({FITS // 4})")), "cuda"],
        gpu=find_gpu("rtx-4090"),
    )
    assert tried.allocated_bytes == right.allocated_bytes
    assert [each.steps for each in tried.answer.steps] == [3]
    assert tried.answer.peak_reserved < 24 << 30
    assert "the GPU of 24.0 GiB refused 2 allocations" in tried.warnings[0]


@pytest.mark.parametrize("handler", quick_every(4, PASSING_ON.values(), start=2), ids=PASSING_ON)
def test_a_program_that_does_not_try_again_gets_its_full_figure(program, handler: str) -> None:
    text = TRIES.format(handler=handler, call=f"find({FITS})")
    found = rehearse([sys.executable, program(text), "cuda"], gpu=find_gpu("rtx-4090"))
    assert found.allocated_bytes > 48 << 30
    assert not any("refused" in each for each in found.warnings)


def test_accelerates_search_for_a_batch_size_ends_where_it_would(program) -> None:
    pytest.importorskip("accelerate")
    search = "from accelerate.utils import find_executable_batch_size\nfind_executable_batch_size(train, {})()"
    search = search.format(FITS)
    text = TRIES.format(handler="finally: pass", call=search)
    found = rehearse([sys.executable, program(text), "cuda"], gpu=find_gpu("rtx-4090"))
    assert 16 << 30 < found.answer.peak_reserved < 24 << 30
    size = max(each.shape[0] for each in found.budget.largest if each.shape)
    assert size in {int_after(FITS, turns) for turns in range(60)}


def int_after(size: int, turns: int) -> int:
    """Return the size that accelerate tries after some refusals: each is nine tenths of the one before, rounded."""
    for _ in range(turns):
        size = int(size * 0.9)
    return size


def test_a_try_does_not_count(program) -> None:
    text = TRIES.format(handler=CATCHING["its text"], call="find(1 << 22 if dev == 'cuda' else 1 << 6)").replace(
        "size //= 2", "size = 1 << 6"
    )
    rehearse_beside_cpu(program(text))


GROWS = """
def grow(size):
    while True:
        try:
            train(size)
            size *= 2
        except torch.OutOfMemoryError:
            break
    return size // 2
train(grow(1 << 12))
"""


def test_a_program_that_grows_its_batch_until_memory_is_full_gets_the_largest(program) -> None:
    text = TRIES.format(handler="finally: pass", call=GROWS)
    found = rehearse([sys.executable, program(text), "cuda"], gpu=find_gpu("rtx-4090"))
    right = TRIES.format(handler="finally: pass", call=f"train({FITS // 4})")
    assert (
        found.allocated_bytes
        == rehearse([sys.executable, program(right), "cuda"], gpu=find_gpu("rtx-4090")).allocated_bytes
    )


SKIPS = """
import sys, torch, torch.nn as nn
net = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for size in {}:
    try:
        net(torch.randn(size, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
    except torch.OutOfMemoryError:
        pass
    optimizer.zero_grad()
"""


def test_a_program_that_leaves_out_batches_keeps_what_it_took_before(program) -> None:
    large, small = FITS // 8, 64
    skips = program(SKIPS.format([large, FITS, FITS, small, small]))
    found = rehearse([sys.executable, skips], gpu=find_gpu("rtx-4090"))
    assert [each.steps for each in found.answer.steps] == [3]
    assert "refused 2 allocations" in found.warnings[0]
    right = rehearse([sys.executable, program(SKIPS.format([large, small, small]))], gpu=find_gpu("rtx-4090"))
    assert found.allocated_bytes == right.allocated_bytes


@pytest.mark.parametrize("optimizer", first_quick(["optimizer.step()", "pass"]))
def test_a_program_that_only_looks_for_the_largest_size_is_told_apart(program, optimizer: str) -> None:
    text = TRIES.format(handler="finally: pass", call=GROWS.replace("train(grow(1 << 12))", "grow(1 << 12)"))
    text = text.replace("optimizer.step()", optimizer)
    with pytest.raises(CannotTellError, match=r"refused an allocation .+ only looked for the largest size"):
        rehearse([sys.executable, program(text), "cuda"], gpu=find_gpu("rtx-4090"))
