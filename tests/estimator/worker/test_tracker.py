"""The tracker compared with torch's own record of allocations, which no dispatch mode disturbs."""

from itertools import accumulate

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vramtop.estimator.worker.memory.tracker import StorageTracker

SIZE = 128
BYTES = 4 * SIZE * SIZE


def residual(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x + torch.relu(x @ weight)
    return x.sum()


def shared(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Both terms receive the gradient tensor of the sum itself."""
    left = x * weight
    return (left + (left.exp() + x)).sum()


def tied(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Tied embedding and head, with few tokens: the large tensor is the weight's gradient, which comes from both."""
    embedded = torch.nn.functional.embedding(torch.arange(4), weight)
    return (embedded @ weight.T).sum() + x.sum()


def profiled_peak(loss_of) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss_of(*(torch.rand(SIZE, SIZE, requires_grad=True) for _ in range(2))).backward()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


def tracked_peak(loss_of) -> int:
    with FakeTensorMode(), StorageTracker() as tracker:
        tracker.begin_phase(1, "forward")
        loss = loss_of(*(torch.empty(SIZE, SIZE, requires_grad=True) for _ in range(2)))
        tracker.begin_phase(1, "backward")
        loss.backward()
    sizes = [record.size for record in tracker.history.records]
    return max(accumulate(sizes[n - 1] if n > 0 else -sizes[-n - 1] for n in tracker.history.events))


def twice(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return ((x * weight).relu() + weight.exp()).sum()


def squared(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """One node gives its input two gradients."""
    left = x + weight
    return (left * left).sum()


def factored(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The formula for the gradient adds tensors that it made itself."""
    return torch.linalg.cholesky(x @ x.T + weight + 1000 * torch.eye(SIZE)).exp().sum()


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        sigmoid = torch.sigmoid(x)
        slope = sigmoid + x * sigmoid * (1 - sigmoid)
        shifted = gradient + sigmoid
        return slope * (shifted - sigmoid)


def own(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Python's code for the gradient adds tensors."""
    return Swish.apply(x @ weight).sum()


@pytest.mark.parametrize("loss_of", [residual, shared, tied, twice, squared, factored, own])
def test_gradients_are_added_up_as_autograd_does(loss_of) -> None:
    assert tracked_peak(loss_of) == pytest.approx(profiled_peak(loss_of), abs=BYTES / 8)


def test_a_copy_s_storage_ends_when_it_is_replaced() -> None:
    with FakeTensorMode(), StorageTracker() as tracker:
        made = torch.empty(0).set_(torch.empty(SIZE).untyped_storage())  # as ``copy.deepcopy`` of a tensor does
        made.data = made.data * 0.9
    assert sum(1 if event > 0 else -1 for event in tracker.history.events) == 1
