"""The imitated CUDA kernels compared with torch's own kernels for tensors without data."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from vramtop.estimator.worker.memory.tracker import StorageTracker
from vramtop.estimator.worker.rehearsal import cuda_kernels as forward_pass

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
B, H, S = 2, 8, 200
FLASH = torch.ops.aten._scaled_dot_product_flash_attention.default
EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention.default


def inputs(heads: int, d: int, dtype: torch.dtype, dense: bool) -> list[torch.Tensor]:
    """Return query, key and value as attention layers make them: tokens before heads, transposed; or heads first."""
    shapes = [(B, S, count, d) for count in (H, heads, heads)]
    made = [torch.empty(shape, dtype=dtype).transpose(1, 2) for shape in shapes]
    return [(tensor.contiguous() if dense else tensor).requires_grad_() for tensor in made]


def layouts(tensors: Any) -> list[Any]:
    return [
        (tensor.shape, tensor.stride(), tensor.element_size())
        for tensor in tree_leaves(tensors)
        if isinstance(tensor, torch.Tensor) and tensor.numel()
    ]


def nodes_behind(output: Any) -> set[str]:
    """Return the names of the autograd nodes behind a result, along their first inputs."""
    found, node = set(), output.grad_fn
    while node is not None:
        found.add(type(node).__name__)
        node = node.next_functions[0][0] if node.next_functions else None
    return found


def saved_by(function: Any) -> tuple[Any, list[Any]]:
    """Return a function's result and the tensors that it saves for the backward pass."""
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        result = function()
    return result, sorted(layouts(kept))


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("heads", [H, 2])
@pytest.mark.parametrize("d", [64, 80, 128, 192])
def test_flash_attention_saves_and_returns_what_torch_does(d: int, heads: int, dense: bool) -> None:
    with FakeTensorMode():
        ours, theirs = inputs(heads, d, BF16, dense), inputs(heads, d, BF16, dense)
        output, kept = saved_by(lambda: forward_pass.scaled_dot_product_attention(*ours, enable_gqa=True))
        expected, expected_kept = saved_by(lambda: FLASH(*theirs))

        assert layouts(output) == layouts(expected[0])
        assert kept == expected_kept
        output.sum().backward()
        expected[0].sum().backward()
        assert layouts([tensor.grad for tensor in ours]) == layouts([tensor.grad for tensor in theirs])


def test_flash_attention_of_models_whose_values_are_narrower_pads_them() -> None:
    with FakeTensorMode():
        query, key = (torch.empty((B, H, S, 192), dtype=BF16, requires_grad=True) for _ in range(2))
        value = torch.empty((B, H, S, 128), dtype=BF16, requires_grad=True)
        (output, _), kept = saved_by(lambda: forward_pass._flash_for_transformers(None, query, key, value))

        assert output.shape == (B, S, H, 128)
        # query, key, padded value and the output, all as wide as the query
        assert sum(shape[-1:] == (192,) and width == 2 for shape, _, width in kept) == 4
        output.sum().backward()
        assert value.grad.shape == value.shape


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(("d", "dtype"), [(64, FP32), (128, FP32), (64, BF16), (320, BF16)])
@pytest.mark.parametrize("masked", [False, True])
def test_efficient_attention_saves_and_returns_what_torch_does(d, dtype, masked, dense) -> None:
    with FakeTensorMode():
        mask = torch.empty((B, 1, S, 208), dtype=dtype)[..., :S].expand(B, H, S, S) if masked or d == 64 else None
        ours, theirs = inputs(H, d, dtype, dense), inputs(H, d, dtype, dense)
        output, kept = saved_by(lambda: forward_pass._MemoryEfficientAttention.apply(*ours, mask)[0])
        expected, expected_kept = saved_by(lambda: EFFICIENT(*theirs, mask, True))

        assert layouts(output) == layouts(expected[0])
        assert [entry for entry in expected_kept if len(entry[0])] == kept  # but seed and offset, on the host
        output.sum().backward()
        expected[0].sum().backward()
        assert layouts([tensor.grad for tensor in ours]) == layouts([tensor.grad for tensor in theirs])


@pytest.mark.parametrize(
    ("d", "value_d", "heads", "dtype", "masked", "kernel"),
    [
        (64, 64, H, BF16, False, "_FlashAttention"),
        (256, 256, 2, FP16, False, "_FlashAttention"),
        (60, 60, H, BF16, False, "_FlashAttention"),
        (64, 64, H, FP32, False, "_MemoryEfficientAttention"),
        (64, 64, H, BF16, True, "_MemoryEfficientAttention"),
        (320, 320, H, BF16, False, "_MemoryEfficientAttention"),
        (64, 32, H, BF16, False, "_MemoryEfficientAttention"),
        (64, 64, 2, FP32, False, "math"),
        (60, 60, H, BF16, True, "math"),
    ],
)
def test_choice_of_the_kernel(d: int, value_d: int, heads: int, dtype: torch.dtype, masked: bool, kernel: str) -> None:
    with FakeTensorMode():
        query, key, _ = inputs(heads, d, dtype, dense=False)
        value = inputs(heads, value_d, dtype, dense=False)[2]
        mask = torch.zeros((B, 1, S, S), dtype=torch.bool) if masked else None
        output, kept = saved_by(
            lambda: forward_pass.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
        )

    scores_are_kept = any(shape[-2:] == (S, S) and shape[0] in (B, B * H) for shape, _, _ in kept)
    assert output.shape == (B, H, S, value_d)
    assert (f"{kernel}Backward" in nodes_behind(output)) == (kernel != "math")
    assert scores_are_kept == (kernel == "math" or masked)


@pytest.mark.parametrize(
    ("enabled", "kernel"),
    [
        (SDPBackend.MATH, "UnsafeView"),
        (SDPBackend.EFFICIENT_ATTENTION, "_MemoryEfficientAttention"),
        (SDPBackend.CUDNN_ATTENTION, "_FlashAttention"),
    ],
)
def test_a_program_may_switch_kernels_of_attention_off(enabled: SDPBackend, kernel: str) -> None:
    with FakeTensorMode(), sdpa_kernel(enabled):
        output, kept = saved_by(lambda: forward_pass.scaled_dot_product_attention(*inputs(H, 64, BF16, dense=False)))
    assert any(name.startswith(f"{kernel}Backward") for name in nodes_behind(output))
    assert any(shape[-2:] == (S, S) for shape, _, _ in kept) == (enabled is SDPBackend.MATH)


def test_autocast_casts_the_inputs_of_attention_and_nothing_inside() -> None:
    with FakeTensorMode():
        query, key, value = (torch.empty((B * H, S, 64), requires_grad=True) for _ in range(3))
        narrow = [each.to(BF16) for each in (query, key, value)]
        _, expected = saved_by(lambda: forward_pass.scaled_dot_product_attention(*narrow))
        with torch.autocast("cpu", dtype=BF16):
            _, kept = saved_by(lambda: forward_pass.scaled_dot_product_attention(query, key, value))
    scores = ((B * H, S, S), (S * S, S, 1), 4)
    assert scores in kept
    assert kept == expected


def test_dropout_keeps_a_byte_per_element() -> None:
    with FakeTensorMode(), forward_pass.cuda_kernels():
        tensor = torch.empty(4, 8, requires_grad=True)
        _, kept = saved_by(lambda: functional.dropout(tensor, 0.1))

    assert [(tuple(shape), size) for shape, _, size in kept] == [((4, 8), 1)]


def test_softmax_of_fp16_makes_no_copy() -> None:
    with FakeTensorMode(), forward_pass.cuda_kernels():
        tensor = torch.empty(4, 8, dtype=FP16, requires_grad=True)
        wide, kept = saved_by(lambda: functional.softmax(tensor, -1, dtype=FP32))
        wide.sum().backward()

    assert [(tuple(shape), size) for shape, _, size in kept] == [((4, 8), 4)]
    assert tensor.grad.dtype == FP16


@pytest.mark.parametrize(
    ("tokens", "rows", "sums"), [(3072, 9999, 0), (3073, 9999, 307 + 3073), (3073, 100, 307 + 100)]
)
def test_gradients_of_embeddings_of_many_tokens_need_partial_sums(tokens: int, rows: int, sums: int) -> None:
    with FakeTensorMode(), forward_pass.cuda_kernels(), StorageTracker() as tracker:
        weight = torch.empty(rows, 128, dtype=BF16, requires_grad=True)
        functional.embedding(torch.zeros(1, tokens, dtype=torch.long), weight).sum().backward()

    sizes = [record.size for record in tracker.history.records if record.dtype == "float32"]
    assert sum(sizes) == 4 * 128 * sums
    assert weight.grad.shape == (rows, 128)


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_fused_rms_norm_backward"), reason="before torch 2.9")
def test_rms_norm_saves_its_input_and_a_number_for_each_row() -> None:
    """As the derivative of ``_fused_rms_norm`` says in torch's ``derivatives.yaml``."""
    tensor, weight = (torch.randn(shape, requires_grad=True) for shape in ((3, 5, 8), (8,)))
    with forward_pass.cuda_kernels():
        low, kept_low = saved_by(lambda: functional.rms_norm(tensor.bfloat16(), (8,), weight.bfloat16()))
        result, kept = saved_by(lambda: functional.rms_norm(tensor, (8,), weight))
        result.square().sum().backward()

    assert kept == sorted([*layouts([tensor, weight]), *layouts(torch.empty(3, 5, 1))])
    assert (low.dtype, kept_low) == (
        BF16,
        sorted([((3, 5, 8), (40, 8, 1), 2), ((3, 5, 1), (5, 1, 1), 4), ((8,), (1,), 2)]),
    )
    found = [result.detach(), tensor.grad, weight.grad]
    tensor.grad = weight.grad = None
    expected = functional.rms_norm(tensor, (8,), weight)
    expected.square().sum().backward()
    torch.testing.assert_close(found, [expected.detach(), tensor.grad, weight.grad], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("cell", "saved"), [(torch.nn.LSTMCell, 4 + 4 + 1 + 1 + 4), (torch.nn.GRUCell, 3 + 3 + 1 + 5)])
def test_recurrent_cells_save_both_products_and_their_gates(cell: Any, saved: int, bias: bool) -> None:
    """As the derivatives of ``_thnn_fused_lstm_cell`` and ``_thnn_fused_gru_cell`` say in ``derivatives.yaml``."""
    rows, width = 3, 32
    with FakeTensorMode(), forward_pass.cuda_kernels():
        layer, given = cell(8, width, bias=bias), torch.empty(rows, 8, requires_grad=True)
        states = torch.empty(rows, width), torch.empty(rows, width)
        made, kept = saved_by(lambda: layer(given, states if cell is torch.nn.LSTMCell else states[0]))
        made = made[0] if isinstance(made, tuple) else made
        made.sum().backward()

    assert sum(shape[1] for shape, _, width_ in kept if len(shape) == 2 and shape[0] == rows and shape[1] != 8) == (
        width * (saved + 1)  # and the state before, which the product of its weights keeps
    )
    assert made.shape == (rows, width)
    assert given.grad is not None
