"""Hugging Face ids of models that tools name in their own way: torchtune's builders, torchtitan's flavors."""

import os
import re
from collections.abc import Mapping
from typing import Any

from ...program import Program
from ...source import FilesystemView, Finding, Setting
from ...trainer import given_config, known_config

TORCHTUNE = {
    "llama2_7b": "meta-llama/Llama-2-7b-hf",
    "llama2_13b": "meta-llama/Llama-2-13b-hf",
    "llama2_70b": "meta-llama/Llama-2-70b-hf",
    "llama3_8b": "meta-llama/Meta-Llama-3-8B",
    "llama3_70b": "meta-llama/Meta-Llama-3-70B",
    "llama3_1_8b": "meta-llama/Llama-3.1-8B",
    "llama3_1_70b": "meta-llama/Llama-3.1-70B",
    "llama3_1_405b": "meta-llama/Llama-3.1-405B",
    "llama3_2_1b": "meta-llama/Llama-3.2-1B",
    "llama3_2_3b": "meta-llama/Llama-3.2-3B",
    "llama3_3_70b": "meta-llama/Llama-3.3-70B-Instruct",
    "mistral_7b": "mistralai/Mistral-7B-v0.3",
    "qwen2_0_5b": "Qwen/Qwen2-0.5B",
    "qwen2_1_5b": "Qwen/Qwen2-1.5B",
    "qwen2_7b": "Qwen/Qwen2-7B",
    "qwen2_5_0_5b": "Qwen/Qwen2.5-0.5B",
    "qwen2_5_1_5b": "Qwen/Qwen2.5-1.5B",
    "qwen2_5_3b": "Qwen/Qwen2.5-3B",
    "qwen2_5_7b": "Qwen/Qwen2.5-7B",
    "qwen2_5_14b": "Qwen/Qwen2.5-14B",
    "qwen2_5_32b": "Qwen/Qwen2.5-32B",
    "qwen2_5_72b": "Qwen/Qwen2.5-72B",
    "qwen3_0_6b": "Qwen/Qwen3-0.6B",
    "qwen3_4b": "Qwen/Qwen3-4B",
    "qwen3_8b": "Qwen/Qwen3-8B",
    "qwen3_32b": "Qwen/Qwen3-32B",
    "gemma2_2b": "google/gemma-2-2b",
    "gemma2_9b": "google/gemma-2-9b",
    "phi3_mini": "microsoft/Phi-3-mini-4k-instruct",
    "phi4_14b": "microsoft/phi-4",
}
"""torchtune 0.6's builders (``torchtune/models``) without the prefixes and suffixes of variants."""
_VARIANT = re.compile(r"^q?lora_|_(instruct|base|v\d|reward|classifier)$")

TORCHTITAN = {
    ("llama3", "8b"): "meta-llama/Llama-3.1-8B",
    ("llama3", "70b"): "meta-llama/Llama-3.1-70B",
    ("llama3", "405b"): "meta-llama/Llama-3.1-405B",
    ("llama2", "7b"): "meta-llama/Llama-2-7b-hf",
    ("llama2", "13b"): "meta-llama/Llama-2-13b-hf",
    ("qwen3", "0.6b"): "Qwen/Qwen3-0.6B",
    ("qwen3", "4b"): "Qwen/Qwen3-4B",
    ("qwen3", "8b"): "Qwen/Qwen3-8B",
    ("qwen3", "32b"): "Qwen/Qwen3-32B",
    ("qwen3", "30b-a3b"): "Qwen/Qwen3-30B-A3B",
    ("deepseek_v3", "16b"): "deepseek-ai/DeepSeek-V2-Lite",
    ("deepseek_v3", "671b"): "deepseek-ai/DeepSeek-V3",
    ("gpt_oss", "20b"): "openai/gpt-oss-20b",
}
"""torchtitan's models and flavors (``torchtitan/models/*/__init__.py``)."""


def torchtune_id(component: str) -> str | None:
    """Return the id of a builder, such as ``torchtune.models.llama3_1.qlora_llama3_1_8b``; None if it is unknown."""
    return TORCHTUNE.get(_VARIANT.sub("", component.rpartition(".")[2]))


def torchtitan_id(model: str, flavor: str) -> str | None:
    """Return the id of a model and its flavor; None if it is unknown."""
    return TORCHTITAN.get((model.lower(), flavor.lower()))


def folder_id(filesystem: FilesystemView, text: str) -> str | None:
    """Return a checkpoint folder's full path, if it holds a config.json."""
    folder = filesystem.resolve(text)
    return str(folder) if os.access(folder / "config.json", os.F_OK) else None


def config_of_model(program: Program, model: Setting | None) -> Mapping[str, Any] | None:
    """Return the config of a model that a setting names, by id or by folder; None if it is not known here.

    Where the user gives another model, that one's.
    """
    if program.findings.replaces_model:
        return given_config(program.findings, program.environ)
    if model is None:
        return None
    name = folder_id(program.filesystem, str(model.value)) or str(model.value)
    finding = Finding(key="model.id", value=name, origin=model.origin, written=model.written)
    return known_config(finding, program.environ, folders=program.pid is None)
