"""Defaults of TRL's configurations by method and version, from ``arguments/trl.toml``."""

from collections.abc import Mapping
from typing import Any

from ..arguments.table import Default, known_defaults
from ..source.settings import Setting, default_layer
from ..source.versions import framework_with_version
from .methods import METHODS, TABLE


def trl_defaults(method: str, versions: Mapping[str, str]) -> dict[str, Setting]:
    """Return the defaults that TRL changes or adds; of a method that is not known here, those that all have."""
    known = known_defaults("trl", {**TABLE.default["all"], **_own(method)}, versions)
    return default_layer(known, f"default of {framework_with_version('trl', versions)}")


def _own(name: str) -> dict[str, Default]:
    """Return the defaults of a method or a group, with those that it shares with others."""
    method = METHODS.get(name)
    if method is None:
        return dict(TABLE.default.get(name, {}))
    return {key: value for each in method.defaults_of for key, value in _own(each).items()} | dict(method.default)


def model_config_defaults(versions: Mapping[str, str]) -> dict[str, Setting]:
    """Return the defaults of ``ModelConfig``, which TRL's commands make adapters of."""
    return default_layer({"lora_dropout": 0.05}, f"default of {framework_with_version('trl', versions)}")


def argument_defaults(versions: Mapping[str, str]) -> dict[str, Any]:
    """Return what a script finds in TRL's configurations where the command line says nothing."""
    known = known_defaults("trl", TABLE.default["all"], versions)
    return {
        "dtype": known.get("dtype"),
        "torch_dtype": None,
        "attn_implementation": None,
        "gradient_checkpointing": bool(known.get("activation_checkpointing")),
        "model_init_kwargs": None,
        "lora_task_type": "CAUSAL_LM",
        "lora_dropout": 0.05,
        **dict.fromkeys(("use_peft", "load_in_4bit", "load_in_8bit", "use_bnb_nested_quant"), False),
    }
