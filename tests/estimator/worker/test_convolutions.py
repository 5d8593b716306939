"""Workspaces of cuDNN's convolutions, on tensors without data."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramtop.estimator.worker.memory.convolutions import BACKWARD, FORWARD, Convolutions, Workspace  # noqa: E402

BENCHMARK = {True: 1.5, False: 2}


def _calls(
    layer: Any, shape: tuple[int, ...], *, found: Convolutions | None = None, dtype: Any = None, last: bool = False
) -> list[Workspace]:
    """Return the workspaces of a layer's forward and backward pass."""
    found = found or Convolutions(has_tf32=True)
    layer = layer.to("meta", dtype)
    x = torch.empty(shape, device="meta", dtype=dtype)
    if last:
        x = x.to(memory_format=torch.channels_last)
    settings = layer.stride, layer.padding, layer.dilation, layer.transposed, layer.output_padding, layer.groups
    y = FORWARD(x, layer.weight, None, *settings)
    passed = list(found.workspaces(FORWARD, (x, layer.weight, None, *settings), y))
    back = y, x, layer.weight, None, *settings, (True, True, False)
    return passed + list(found.workspaces(BACKWARD, back, None))


def _sizes(calls: list[Workspace]) -> list[int]:
    return [each.expected for each in calls]


@pytest.mark.parametrize("benchmark", [False, True])
def test_a_dense_convolution_copies_its_tensors_and_more_for_the_weight(benchmark: bool) -> None:
    tensors = 4 * (8 * 16 * 32 * 32 + 8 * 24 * 32 * 32 + 24 * 16 * 9)
    with torch.backends.cudnn.flags(enabled=True, benchmark=benchmark):
        forward, of_input, of_weight = _calls(torch.nn.Conv2d(16, 24, 3, padding=1), (8, 16, 32, 32))
    assert forward.expected == forward.low == forward.high == of_input.expected == tensors
    assert of_weight.expected == BENCHMARK[benchmark] * tensors
    assert (of_weight.low, of_weight.high) == (tensors, 2 * tensors)


def test_channels_are_rounded_up_and_stems_differ() -> None:
    x, y = 4 * 8 * 4 * 32 * 32, 4 * 8 * 8 * 32 * 32
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        small = _sizes(_calls(torch.nn.Conv2d(3, 6, 3, padding=1), (8, 3, 32, 32)))
        large = _sizes(_calls(torch.nn.Conv2d(3, 8, 7, padding=3), (8, 3, 32, 32)))
    assert small == [x + y + 4 * 8 * 4 * 9] * 3
    assert large == [x + y + 4 * 8 * 4 * 49] * 2 + [2 * (x + y + 4 * 8 * 4 * 49)]


def test_a_grouped_convolution_may_take_nothing() -> None:
    tensors = 4 * (8 * 16 * 32 * 32 + 8 * 32 * 32 * 32 + 32 * 4 * 9)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        calls = _calls(torch.nn.Conv2d(16, 32, 3, padding=1, groups=4), (8, 16, 32, 32))
    assert [each[:3] for each in calls] == [(tensors, 0, tensors)] * 2 + [(1.5 * tensors, 0, 1.5 * tensors)]


@pytest.mark.parametrize(
    ("layer", "last"),
    [
        (torch.nn.Conv2d(16, 24, 1, stride=2), False),
        (torch.nn.Conv2d(16, 24, 4, stride=4), False),
        (torch.nn.Conv2d(16, 24, 3), True),
        (torch.nn.Conv2d(16, 16, 3, groups=16), True),
    ],
    ids=["1x1", "patches", "channels last", "depthwise, channels last"],
)
def test_others_take_none_but_empty_the_cache_with_benchmark(layer: Any, last: bool) -> None:
    found = Convolutions(has_tf32=True)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        first, second = (_calls(layer, (8, 16, 32, 32), found=found, last=last) for _ in range(2))
        other = _calls(layer, (4, 16, 32, 32), found=found, last=last)
    assert [each[:3] for each in (*first, *second)] == [(0, 0, 0)] * 6
    assert [each.is_new for each in (*first, *second, *other)] == [True] * 3 + [False] * 3 + [True] * 3
    assert found.ran
    assert not found.unmeasured


def test_depthwise_in_fp32_is_torchs_own_kernel() -> None:
    found = Convolutions(has_tf32=True)
    assert not _calls(torch.nn.Conv2d(16, 16, 3, groups=16), (8, 16, 32, 32), found=found)
    assert not found.ran


@pytest.mark.parametrize(
    ("layer", "shape", "dtype", "has_tf32", "kind"),
    [
        (torch.nn.Conv2d(16, 24, 3), (8, 16, 32, 32), torch.bfloat16, True, "in bfloat16"),
        (torch.nn.Conv2d(16, 24, 3), (8, 16, 32, 32), None, False, "in fp32 without TF32"),
        (torch.nn.Conv3d(16, 24, 3), (2, 16, 8, 8, 8), None, True, "over 3 dimensions"),
        (torch.nn.Conv1d(16, 24, 3), (2, 16, 64), None, True, "over 1 dimension"),
        (torch.nn.ConvTranspose2d(16, 24, 3), (8, 16, 32, 32), None, True, "that are transposed"),
        (torch.nn.Conv2d(16, 24, 3, dilation=2), (8, 16, 32, 32), None, True, "with dilation"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_was_never_measured_may_take_nothing_or_twice_the_rule(layer, shape, dtype, has_tf32, kind) -> None:
    found = Convolutions(has_tf32=has_tf32)
    for each in _calls(layer, shape, found=found, dtype=dtype):
        assert each.low == 0 < each.expected
        assert each.high >= 2 * each.expected
    assert list(found.unmeasured) == [kind]


def test_tf32_that_the_program_has_switched_off_is_not_there() -> None:
    found = Convolutions(has_tf32=True)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        _calls(torch.nn.Conv2d(16, 24, 3), (8, 16, 32, 32), found=found)
    assert list(found.unmeasured) == ["in fp32 without TF32"]


def test_without_cudnn_there_are_no_workspaces() -> None:
    with torch.backends.cudnn.flags(enabled=False):
        assert not _calls(torch.nn.Conv2d(16, 24, 3), (8, 16, 32, 32))
