"""Defaults of TRL's configurations by method and version, where memory depends on them.

Taken from the dataclasses of TRL 0.9 to 1.16 (``trl/trainer/*_config.py``, ``trl/experimental``), and from what the
trainers put in the place of None.
"""

from collections.abc import Mapping
from typing import Any

from ..source.evidence import Setting, default_layer
from ..source.versions import framework_with_version, is_at_least

_Version = tuple[int, int]
_Steps = tuple[tuple[_Version, object], ...]
"""Values, each with the version since which it is the default; None: there is none."""

_ALL: Mapping[str, _Steps] = {
    "activation_checkpointing": (((0, 22), True),),
    "bf16_unless_fp16": (((0, 19), True),),
    "dtype": (((0, 27), "float32"),),
}
_LENGTH_OF_SFT: _Steps = (((0, 0), 1024),)
_LENGTH_OF_PAIRS: _Steps = (((0, 0), 512), ((0, 14), 1024))
"""Before 0.14 the trainers warned and took 512 where ``max_length`` was None."""
_COMPLETION: _Steps = (((0, 14), 256), ((1, 10), 512))
_VLLM: Mapping[str, _Steps] = {
    "vllm_mode": (((0, 16), "server"), ((1, 0), "colocate")),
    "vllm_gpu_memory_utilization": (((0, 14), 0.9), ((0, 18), 0.3)),
}
_ONLINE: Mapping[str, _Steps] = {
    "max_length": (((0, 14), 512),),
    "max_new_tokens": (((0, 0), 64),),
    "vllm_mode": (((0, 14), "colocate"), ((0, 23), "server"), ((1, 0), "colocate")),
    "vllm_gpu_memory_utilization": (((0, 14), 0.55),),
}
_PAIRS: Mapping[str, _Steps] = {
    "max_length": _LENGTH_OF_PAIRS,
    "max_prompt_length": (((0, 0), 128), ((0, 14), 512), ((0, 28), None)),
}
_BY_METHOD: Mapping[str, Mapping[str, _Steps]] = {
    "sft": {
        "max_length": _LENGTH_OF_SFT,
        "loss_type": (((0, 0), "nll"), ((1, 7), "chunked_nll"), ((1, 15), "nll")),
    },
    "dpo": _PAIRS,
    "kto": _PAIRS,
    "bco": _PAIRS,
    "cpo": _PAIRS,
    "orpo": _PAIRS,
    "reward": {"max_length": _LENGTH_OF_PAIRS},
    "prm": {"max_length": (((0, 14), 1024),)},
    "grpo": {
        "per_device_train_batch_size": (((0, 14), 1), ((0, 15), None)),
        "max_prompt_length": (((0, 14), 512), ((0, 26), None)),
        "max_completion_length": _COMPLETION,
        "num_generations": (((0, 14), 8),),
        "beta": (((0, 14), 0.04), ((0, 19), 0.0)),
        **_VLLM,
    },
    "rloo": {
        "max_prompt_length": (((0, 22), 512), ((0, 27), None)),
        "max_completion_length": (((0, 22), 256), ((1, 10), 512)),
        "response_length": (((0, 0), 53), ((0, 22), None)),
        "num_generations": (((0, 22), 2),),
        "beta": (((0, 0), 0.05),),
        **_VLLM,
    },
    "online-dpo": _ONLINE,
    "xpo": _ONLINE,
    "nash-md": _ONLINE,
    "gkd": {"max_length": _LENGTH_OF_SFT, "max_new_tokens": (((0, 0), 128),)},
    "gold": {
        "max_length": _LENGTH_OF_SFT,
        "max_completion_length": (((0, 0), 128),),
        "vllm_mode": _VLLM["vllm_mode"],
        "vllm_gpu_memory_utilization": (((0, 0), 0.9),),
    },
    "distillation": {
        "max_length": (((1, 1), 1024), ((1, 10), None)),
        "max_completion_length": (((0, 0), 512),),
        **_VLLM,
    },
    "minillm": {"max_completion_length": _COMPLETION, "num_generations": (((0, 0), 8),), **_VLLM},
    "tpo": {"max_length": (((0, 0), 1024),)},
    "async-grpo": {"max_completion_length": (((0, 0), 2048),), "num_generations": (((0, 0), 8),)},
    "a2po": {"max_prompt_length": (((0, 0), 512),), "max_completion_length": (((0, 0), 256),)},
    "sdft": {"max_prompt_length": (((0, 0), 512),), "max_completion_length": (((0, 0), 256),), **_VLLM},
    "sdpo": {"max_prompt_length": (((0, 0), 512),), "max_completion_length": (((0, 0), 256),), **_VLLM},
    "iw-opd": {"max_length": (((0, 0), 1024),), "max_completion_length": (((0, 0), 512),), **_VLLM},
    "async-distillation": {"max_completion_length": (((0, 0), 512),)},
    "ppo": {"response_length": (((0, 0), 53),)},
}
_SAME_AS = {"gmpo": "grpo", "server-distillation": "distillation"}
"""Methods whose configuration derives from another's."""


def trl_defaults(method: str, versions: Mapping[str, str]) -> dict[str, Setting]:
    """Return the defaults that TRL changes or adds; of a method that is not known here, those that all have."""
    tables = {**_ALL, **_BY_METHOD.get(_SAME_AS.get(method, method), {})}
    values = {name: _value(steps, versions) for name, steps in tables.items()}
    known = {name: value for name, value in values.items() if value is not None}
    return default_layer(known, f"default of {framework_with_version('trl', versions)}")


def model_config_defaults(versions: Mapping[str, str]) -> dict[str, Setting]:
    """Return the defaults of ``ModelConfig``, which TRL's commands make adapters of."""
    return default_layer({"lora_dropout": 0.05}, f"default of {framework_with_version('trl', versions)}")


def argument_defaults(versions: Mapping[str, str]) -> dict[str, Any]:
    """Return what a script finds in TRL's configurations where the command line says nothing."""
    found = {name: _value(steps, versions) for name, steps in _ALL.items()}
    return {
        "dtype": found["dtype"],
        "torch_dtype": None,
        "attn_implementation": None,
        "gradient_checkpointing": bool(found["activation_checkpointing"]),
        "model_init_kwargs": None,
        "lora_task_type": "CAUSAL_LM",
        "lora_dropout": 0.05,
        **dict.fromkeys(("use_peft", "load_in_4bit", "load_in_8bit", "use_bnb_nested_quant"), False),
    }


def _value(steps: _Steps, versions: Mapping[str, str]) -> object:
    found = None
    for version, value in steps:
        if is_at_least("trl", version, versions):
            found = value
    return found
