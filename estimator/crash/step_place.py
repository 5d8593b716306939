"""Finds the phase of the training step of a stack, and its innermost line of the user's or a model's code."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from ..budget import PhaseName
from .records import StackFrame

_TORCH_FILES = ("/torch/", "torch/_", "<frozen", "/importlib/", "/runpy.py", "/threading.py", "/contextlib.py")
_RULES: tuple[tuple[PhaseName, tuple[str, ...], tuple[str, ...]], ...] = (
    # (phase, ends or parts of the file, functions; empty: any). The first rule with a frame decides.
    ("optimizer step", ("torch/optim/", "bitsandbytes/optim/", "deepspeed/ops/", "apex/optimizers/"), ()),
    (
        "optimizer step",
        ("accelerate/optimizer.py", "torch/amp/grad_scaler.py", "runtime/zero/"),
        ("step", "_take_model_step"),
    ),
    ("optimizer step", ("torch/nn/utils/clip_grad.py",), ()),
    ("backward", ("torch/autograd/graph.py",), ("_engine_run_backward",)),
    ("backward", ("torch/autograd/__init__.py", "torch/_tensor.py"), ("backward", "grad")),
    ("backward", ("torch/utils/checkpoint.py",), ("backward", "unpack_hook", "recompute_fn")),
    ("backward", ("deepspeed/runtime/", "accelerate/accelerator.py"), ("backward",)),
    ("generation", ("transformers/generation/", "/vllm/", "vllm_client"), ()),
    ("saving", ("transformers/modeling_utils.py", "trainer.py"), ("save_pretrained", "_save_checkpoint", "save_model")),
    ("saving", ("torch/distributed/checkpoint/", "state_dict.py"), ("save", "async_save", "get_state_dict")),
    ("loading", ("transformers/modeling_utils.py", "/auto_factory.py"), ("from_pretrained", "_load_pretrained_model")),
    (
        "loading",
        ("torch/nn/modules/module.py",),
        ("to", "cuda", "_apply", "to_empty", "half", "bfloat16", "load_state_dict"),
    ),
    (
        "loading",
        ("fully_sharded_data_parallel.py", "_fully_shard.py", "fsdp/_init_utils.py"),
        ("__init__", "fully_shard"),
    ),
    ("loading", ("torch/nn/parallel/distributed.py", "deepspeed/__init__.py"), ("__init__", "initialize")),
    ("loading", ("torch/serialization.py", "safetensors/torch.py"), ("load", "load_file", "_load")),
    ("forward", ("torch/nn/modules/module.py",), ("_call_impl", "_wrapped_call_impl", "__call__")),
    ("forward", ("torch/nn/functional.py", "loss/loss_utils.py"), ()),
    ("forward", (), ("forward", "training_step", "compute_loss", "evaluation_loop", "prediction_step")),
)


def phase_of(frames: Iterable[StackFrame]) -> PhaseName | None:
    """Return the phase of the step in which a stack stands; None: nothing of it says so."""
    first = min((_rule(frame.file, frame.function) for frame in frames), default=len(_RULES))
    return _RULES[first][0] if first < len(_RULES) else None


@lru_cache(maxsize=16_384)
def _rule(file: str, function: str) -> int:
    """Return the first rule that a frame meets; the number of rules if none."""
    for at, (_, files, functions) in enumerate(_RULES):
        if (not files or any(part in file for part in files)) and (not functions or function in functions):
            return at
    return len(_RULES)


def own_frame(innermost_first: Sequence[StackFrame]) -> StackFrame | None:
    """Return the innermost frame outside torch's and Python's own files; None: there is none."""
    return next((frame for frame in innermost_first if not is_torch_file(frame.file)), None)


def is_torch_file(file: str) -> bool:
    """Return True for a file of torch, or of Python's own library."""
    path = file.replace("\\", "/")
    return any(part in path for part in _TORCH_FILES)
