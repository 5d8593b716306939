"""Training tools that are not read: how their programs and files are recognized, and what answers in place of them.

Names of programs and of settings: the tools' repositories, as of 2026.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .program.program import Launch

_REHEARSE = "run its own command without a GPU: vramtop rehearse -- COMMAND"
_FLAGS = "give the model and its settings, as in vramtop fit MODEL --lora --batch-size N --seq-len N"
_SEVERAL_PROCESSES = (
    "it trains and generates in several processes; describe the one that trains, as in vramtop fit MODEL --grpo "
    "--batch-size N --seq-len N --gpus N"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadTool:
    """A training tool that is known by name only."""

    name: str
    instead: str
    """What to do, as the end of a sentence."""
    programs: str = "(?!)"
    """Regular expression of its modules and scripts."""
    keys: tuple[tuple[str, ...], ...] = ()
    """Dotted settings; a file that has all of one row is the tool's."""

    @property
    def sentence(self) -> str:
        """What the tool is, and what to do."""
        return f"{self.name} is not read; {self.instead}"


UNREAD_TOOLS = (
    UnreadTool(
        name="verl",
        instead=_SEVERAL_PROCESSES,
        programs=r"verl\..*",
        keys=(("actor_rollout_ref",), ("algorithm.adv_estimator",)),
    ),
    UnreadTool(name="OpenRLHF", instead=_SEVERAL_PROCESSES, programs=r"openrlhf\.cli\.train_(ppo|grpo)\w*"),
    UnreadTool(name="OpenRLHF", instead=_FLAGS, programs=r"openrlhf\..*"),
    UnreadTool(
        name="NeMo RL",
        instead=_SEVERAL_PROCESSES,
        programs=r"nemo_rl\..*",
        keys=(("policy", "grpo"), ("policy", "dpo")),
    ),
    UnreadTool(
        name="This reinforcement learning tool",
        instead=_SEVERAL_PROCESSES,
        programs=r"(skyrl\w*|areal|slime|rllm|prime_rl|trinity|roll)\..*",
    ),
    UnreadTool(
        name="SimpleTuner",
        instead=_REHEARSE,
        programs=r"(.*/)?simpletuner(\..*)?|(.*/)?SimpleTuner/train",
        keys=(("--model_family",), ("model_family", "model_type"), ("--data_backend_config",)),
    ),
    UnreadTool(
        name="diffusion-pipe",
        instead=_REHEARSE,
        keys=(("model.type", "micro_batch_size_per_gpu"), ("model.type", "adapter.type")),
    ),
    UnreadTool(
        name="sd-scripts",
        instead=_REHEARSE,
        programs=r"(.*/)?((sdxl?|flux|sd3|lumina|hv|wan|fpack|qwen_image)_)?train_(network|control_net|textual_inversion|db)",
        keys=(("network_module",), ("pretrained_model_name_or_path", "network_dim")),
    ),
    UnreadTool(name="ai-toolkit", instead=_REHEARSE, keys=(("job", "config.process"),)),
    UnreadTool(name="OneTrainer", instead=_REHEARSE, keys=(("training_method", "base_model_name"),)),
    UnreadTool(
        name="LLM Foundry",
        instead=_FLAGS,
        programs=r"llmfoundry\..*",
        keys=(("max_seq_len", "global_train_batch_size"), ("device_train_microbatch_size",)),
    ),
    UnreadTool(
        name="GPT-NeoX",
        instead=_FLAGS,
        keys=(("pipe_parallel_size", "model_parallel_size"), ("pipe-parallel-size", "model-parallel-size")),
    ),
    UnreadTool(name="NeMo", instead=_FLAGS, keys=(("exp_manager", "trainer"),)),
    UnreadTool(name="Ludwig", instead=_FLAGS, keys=(("model_type", "input_features"),)),
    UnreadTool(
        name="AutoTrain", instead=_FLAGS, programs=r"autotrain(\..*)?", keys=(("task", "base_model", "project_name"),)
    ),
)


def unread_tool_of_launch(launch: Launch) -> UnreadTool | None:
    """Return the tool that is not read whose program a launch line starts."""
    program = launch.module or (launch.script or "").removesuffix(".py")
    return next((tool for tool in UNREAD_TOOLS if re.fullmatch(tool.programs, program)), None)


def unread_tool_of_table(table: Mapping[str, Any]) -> UnreadTool | None:
    """Return the tool that is not read whose configuration file a table is from."""
    return next((tool for tool in UNREAD_TOOLS if any(all(_has(table, key) for key in row) for row in tool.keys)), None)


def _has(table: Mapping[str, Any], key: str) -> bool:
    for name in key.split("."):
        if not isinstance(table, Mapping) or name not in table:
            return False
        table = table[name]
    return True
