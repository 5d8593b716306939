"""cuDNN's recurrent layers, as one operator each.

``ATen/native/cudnn/RNN.cpp`` (``_cudnn_rnn``, ``_cudnn_rnn_backward``) makes the tensors. How large cuDNN's reserve
and workspace are is not published, so the rule is inferred: pytorch's issue 2895 tells reserves of 736,000,000 bytes
(LSTM) and 864,000,000 (GRU) and workspaces of 17,730,560 and 13,169,920 with cuDNN of 2017. With four layers of 320
units, which its counts of parameters suggest, the reserves are 23 and 27 times a tensor of the same tokens and units:
for each layer and direction, five tensors of an LSTM (its gates and cells) and six of a GRU, and one between layers;
the workspaces are the weights without biases, and 11 and 8 tensors of a step for each layer. Layers without gates
are a guess; masks of dropout between layers are not counted. The range is wide for that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_KEPT = {"lstm": 5, "gru": 6, "rnn_tanh": 1, "rnn_relu": 1}
_OF_A_STEP = {"lstm": 11, "gru": 8, "rnn_tanh": 2, "rnn_relu": 2}
_SINCE_BF16 = "2.11"
"""torch whose builds for CUDA have cuDNN 9.13 or newer, which takes bf16 too, from compute capability 8.0 on.

Source: torch, ``CUDAHooks::supportsBFloat16RNNWithCuDNN``.
"""


def recurrent_layers(is_on_gpu: Any, doubts: Any, *, is_ampere: bool = True) -> Iterator[tuple[Any, str, Any]]:
    """Yield stand-ins for the functions behind ``torch.nn.LSTM`` and others, for tensors on a GPU.

    Args:
        is_on_gpu: says of a tensor whether it is there.
        doubts: what is not known is added to it.
        is_ampere: the GPU has compute capability 8.0 or more.
    """
    has_bf16 = is_ampere and torch.__version__ >= _SINCE_BF16
    dtypes = {*torch.backends.cudnn.CUDNN_TENSOR_DTYPES, *([torch.bfloat16] if has_bf16 else [])}
    for name in _GATES:
        original = getattr(torch._VF, name)
        yield torch._VF, name, functools.partial(_recurrent, name, original, is_on_gpu, dtypes, doubts)
    # weights in one buffer take what they take in many
    yield torch.backends.cudnn, "is_acceptable", lambda tensor: False  # noqa: ARG005 - torch's names


def _recurrent(  # noqa: PLR0917 - torch's own come last
    name: str, original: Any, is_on_gpu: Any, dtypes: Any, doubts: Any, tensor: Any, *args: Any
) -> Any:
    if not is_on_gpu(tensor):
        return original(tensor, *args)
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else tensor.dtype
    if not torch.backends.cudnn.enabled or dtype not in dtypes:
        doubts.add("recurrent layers without cuDNN run as single steps", "recurrent")
        return original(tensor, *args)
    sentence = "memory kept by recurrent layers follows a rule inferred from cuDNN of 2017; cuDNN publishes none"
    doubts.add(sentence, "recurrent")
    is_packed = isinstance(args[0], torch.Tensor) and not args[0].is_floating_point()  # how many go on, step by step
    states, weights, _, layers, _, is_training, both, *is_batch_first = args[1:] if is_packed else args
    states = states if isinstance(states, (list, tuple)) else (states,)
    if dtype != tensor.dtype:
        tensor, states = tensor.to(dtype), [each.to(dtype) for each in states]
        weights = [each.to(dtype) for each in weights]
    settings = name, layers * (1 + both), both, is_packed or not is_batch_first[0], is_training
    output, *last = _CudnnLayer.apply(settings, tensor, len(states), *states, *weights)
    return (output, *last)


class _CudnnLayer(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """All layers of a recurrent network: saves inputs, weights, output and cuDNN's reserve."""

    @staticmethod
    def forward(ctx: Any, settings: Any, tensor: Any, count: int, *others: Any) -> Any:
        name, stacked, both, steps_first, is_training = settings
        states, weights = others[:count], others[count:]
        x = tensor if steps_first else tensor.transpose(0, 1).contiguous()
        tokens, units = x.shape[:-1], weights[0].shape[0] // _GATES[name]
        output = x.new_zeros((*tokens, states[0].shape[-1] * (1 + both)))
        last = [torch.zeros_like(each) for each in states]
        kept = _KEPT[name] * stacked + max(0, stacked - 1 - both)
        reserve = x.new_empty((tokens.numel() * units * kept if is_training else 0,))
        matrices = sum(each.numel() for each in weights if each.dim() > 1)
        ctx.workspace = matrices + _OF_A_STEP[name] * stacked * states[0].shape[1] * units
        x.new_empty(ctx.workspace)
        ctx.save_for_backward(tensor, output, reserve, *others)
        ctx.settings = steps_first, count
        return (output if steps_first else output.transpose(0, 1), *last)

    @staticmethod
    def backward(ctx: Any, gradient: Any, *of_last: Any) -> Any:
        tensor, _output, _reserve, *others = ctx.saved_tensors
        steps_first, count = ctx.settings
        states, weights = others[:count], others[count:]
        x = tensor if steps_first else tensor.transpose(0, 1).contiguous()
        dense = (gradient if steps_first else gradient.transpose(0, 1)).contiguous()
        of_x = torch.zeros_like(x)
        of_states = [torch.zeros_like(each) for each in states]
        work = x.new_empty(ctx.workspace)
        of_weights = [torch.zeros_like(each) for each in weights]
        del work, dense, of_last
        return None, of_x if steps_first else of_x.transpose(0, 1), None, *of_states, *of_weights
