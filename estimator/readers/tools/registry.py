"""Which tool a launch line starts, and which tool a configuration file was written for."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from ..program.launchers import Launch
from ..program.program import Program
from ..source.evidence import JobReading
from . import automodel, axolotl, litgpt, llamafactory, megatron, swift, torchtitan, torchtune, unsloth, vllm

Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A training tool that is read by its own names."""

    name: str
    """For people."""
    runs: re.Pattern[str]
    """What its program is called: a module, or the end of a script's path without ``.py``."""
    wrote: Callable[[Table], bool]
    """Whether a configuration file's table is one of its own."""
    read: Callable[[Program], JobReading]


TOOLS = (
    Tool(
        name="axolotl",
        runs=re.compile(r"axolotl\.cli(\.train|\.main)?|(.*/)?axolotl(/cli/(train|main))?"),
        wrote=lambda table: "base_model" in table,
        read=axolotl.read,
    ),
    Tool(
        name="LLaMA-Factory",
        runs=re.compile(r"(.*/)?(llamafactory-cli|lmf|llamafactory/(launcher|cli))|llamafactory\.(launcher|cli)"),
        wrote=lambda table: (
            "model_name_or_path" in table
            and not {"finetuning_type", "cutoff_len", "stage", "template"}.isdisjoint(table)
        ),
        read=llamafactory.read,
    ),
    Tool(
        name="ms-swift",
        runs=re.compile(r"(.*/)?(swift|swift/cli/(main|sft|pt|rlhf))|swift\.cli\.(main|sft|pt|rlhf)"),
        wrote=lambda table: (
            "model" in table
            and not isinstance(table["model"], Mapping)
            and not {"tuner_type", "train_type", "attn_impl", "target_modules", "swift_version"}.isdisjoint(table)
        ),
        read=swift.read,
    ),
    Tool(
        name="torchtune",
        runs=re.compile(r"(.*/)?recipes/\w+|(full|lora|qat|knowledge|dev)_\w*(single_device|distributed)"),
        wrote=lambda table: _names(table, "_component_"),
        read=torchtune.read,
    ),
    Tool(
        name="torchtitan",
        runs=re.compile(r"torchtitan\.train|(.*/)?torchtitan/train|(.*/)?run_train\.sh"),
        wrote=lambda table: (
            not {"job", "parallelism", "activation_checkpoint"}.isdisjoint(table)
            and isinstance(table.get("training", {}), Mapping)
            and "framework" not in table.get("training", {})
        ),
        read=torchtitan.read,
    ),
    Tool(
        name="NeMo Automodel",
        runs=re.compile(r"(.*/)?automodel|nemo_automodel(\.\w+)*|(.*/)?nemo_automodel/.*"),
        wrote=lambda table: _names(table, "_target_") and ("step_scheduler" in table or "recipe" in table),
        read=automodel.read,
    ),
    Tool(
        name="LitGPT",
        runs=re.compile(r"(.*/)?litgpt|litgpt(\.\w+)*|(.*/)?litgpt/(finetune|pretrain)\w*(/\w+)?"),
        wrote=lambda table: (
            isinstance(table.get("train"), Mapping) and not {"checkpoint_dir", "model_name", "lora_r"}.isdisjoint(table)
        ),
        read=litgpt.read,
    ),
    Tool(
        name="unsloth",
        runs=re.compile(r"(.*/)?unsloth|unsloth_cli(\.\w+)*"),
        wrote=lambda table: (
            isinstance(table.get("training"), Mapping) and "max_seq_length" in table["training"] and "model" in table
        ),
        read=unsloth.read,
    ),
    Tool(
        name="Megatron-LM",
        runs=re.compile(r"(.*/)?(pretrain_(gpt|bert|t5|llama|mamba)|megatron/.*)"),
        wrote=lambda table: (
            {"num_layers", "hidden_size", "micro_batch_size"} <= {key.replace("-", "_") for key in table}
        ),
        read=megatron.read,
    ),
    Tool(
        name="vLLM",
        runs=re.compile(r"(.*/)?vllm|vllm\.entrypoints\.(openai\.)?api_server"),
        wrote=lambda table: not {"gpu-memory-utilization", "max-model-len", "max-num-seqs"}.isdisjoint(table),
        read=vllm.read,
    ),
)


def find_tool_by_launch(launch: Launch) -> Tool | None:
    """The tool whose program the line starts; None for scripts of the user's own and TRL's."""
    script = PurePath(launch.script or "")
    program = launch.module or (str(script.with_suffix("")) if script.name else "")
    if (launch.script or "").endswith(".sh"):
        program = launch.script or ""
    found = next((tool for tool in TOOLS if tool.runs.fullmatch(program)), None)
    if found is None and {"--num-layers", "--hidden-size", "--micro-batch-size"} <= _flags(launch):
        return next(tool for tool in TOOLS if tool.name == "Megatron-LM")
    return found


def find_tool_by_config(table: Table) -> Tool | None:
    """The tool whose configuration a table is."""
    return next((tool for tool in TOOLS if tool.wrote(table)), None)


def _flags(launch: Launch) -> set[str]:
    return {word.partition("=")[0].replace("_", "-") for word in launch.arguments}


def _names(table: Table, key: str) -> bool:
    return key in table or any(_names(value, key) for value in table.values() if isinstance(value, Mapping))
