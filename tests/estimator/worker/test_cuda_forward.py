"""Whole forward passes on fake CPU tensors with CUDA's kernels imitated, compared with fake CUDA tensors.

Runs where torch is built for CUDA and sees no GPU (``CUDA_VISIBLE_DEVICES=``): fake tensors on "cuda" would initialise
one. Backward passes need a GPU, and so does the choice of an attention kernel: attention is eager here.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vramtop.estimator.worker.step import training_steps
from vramtop.estimator.worker.step.cuda_autocast import cuda_autocast
from vramtop.estimator.worker.step.forward_pass import cuda_kernels

pytestmark = pytest.mark.skipif(
    torch.version.cuda is None or torch.cuda.is_available(), reason="needs torch built for CUDA, and no GPU"
)
DECODER = {
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
ENCODER = DECODER | {"intermediate_size": 512}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (transformers.AutoModelForCausalLM, DECODER),
    "qwen3": (transformers.AutoModelForCausalLM, DECODER | {"head_dim": 16}),
    "gemma3_text": (transformers.AutoModelForCausalLM, DECODER | {"head_dim": 32, "sliding_window": 64}),
    "phi": (transformers.AutoModelForCausalLM, DECODER),
    "gpt2": (transformers.AutoModelForCausalLM, {"n_embd": 128, "n_layer": 2, "n_head": 8, "vocab_size": 1000}),
    "gpt_neox": (transformers.AutoModelForCausalLM, ENCODER),
    "bert": (transformers.AutoModelForMaskedLM, ENCODER),
    "t5": (
        transformers.AutoModelForSeq2SeqLM,
        {"vocab_size": 1000, "d_model": 128, "d_kv": 16, "d_ff": 256, "num_layers": 2, "num_heads": 8},
    ),
}
PRECISIONS = {
    "bf16-mixed": (torch.float32, torch.bfloat16),
    "fp16-mixed": (torch.float32, torch.float16),
    "bf16": (torch.bfloat16, None),
    "fp16": (torch.float16, None),
}


class Log(TorchDispatchMode):
    """Log of operations, with the dtypes and shapes of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [f"{leaf.dtype}{list(leaf.shape)}" for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if func is torch.ops.aten.native_layer_norm.default:
            made = made[:1]  # the statistics of 16-bit inputs are fp32 on CUDA: four bytes more per token
        if made and func is not torch.ops.aten.detach.default:
            self.lines.append(f"{func}: {', '.join(made)}")
        return result


@contextlib.contextmanager
def autocast(device: str, low: torch.dtype | None) -> Iterator[None]:
    """``torch.autocast``, which would disable itself where there is no GPU."""
    if low is None:
        yield
        return
    torch.set_autocast_dtype(device, low)
    torch.set_autocast_enabled(device, True)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        torch.set_autocast_enabled(device, False)
        torch.clear_autocast_cache()


def move(model: torch.nn.Module, device: str) -> None:
    """Move fake parameters to another device, which ``Module.to`` cannot."""
    moved: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                new = moved.setdefault(id(parameter), torch.nn.Parameter(parameter.detach().to(device)))
                module._parameters[name] = new
                moved[id(new)] = new
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)


def log_of_forward(family: str, device: str, dtype: torch.dtype, low: torch.dtype | None) -> list[str]:
    auto_class, fields = MODELS[family]
    config = transformers.AutoConfig.for_model(family, **fields)
    config.use_cache, config._attn_implementation, config.decoder_start_token_id = False, "eager", 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(training_steps.no_padding_mask())
        if device == "cpu":
            stack.enter_context(cuda_kernels())
            stack.enter_context(cuda_autocast())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        model = auto_class.from_config(config, dtype=dtype).train()
        move(model, device)
        ids = torch.zeros(2, 64, dtype=torch.long, device=device)
        log = stack.enter_context(Log())
        with autocast(re.sub(":.*", "", device), low):
            model(input_ids=ids, labels=ids)
    return log.lines


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", MODELS)
def test_computes_on_fake_cpu_what_it_does_on_fake_cuda(family: str, precision: str) -> None:
    dtype, low = PRECISIONS[precision]
    on_cuda = log_of_forward(family, "cuda:0", dtype, low)

    assert len(on_cuda) > 100
    assert log_of_forward(family, "cpu", dtype, low) == on_cuda
