"""Launch lines taken apart: what launches (torchrun, accelerate, deepspeed, trl), and the program it starts."""

import base64
import binascii
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from ..source.flags import flag_name, is_flag, parse_flags
from ..source.settings import Setting

_PYTHON = re.compile(r"python[0-9.]*[a-z]?|pypy[0-9.]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_NAMES = {"torchrun": "torchrun", "deepspeed": "deepspeed", "trl": "trl", "accelerate-launch": "accelerate"}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
    "trl": "trl",
    "trl.cli": "trl",
}
_RUN_SCRIPTS = {"debugpy", "pdb", "cProfile", "coverage", "scalene", "viztracer", "memory_profiler", "kernprof"}
"""Modules that run the script after them."""
_TORCHRUN_BARE = {"standalone", "no_python", "run_path", "m", "module", "virtual_local_rank", "use_env"}
_DEEPSPEED_BARE = {"module", "no_python", "no_local_rank", "force_multi", "enable_each_rank_log", "no_ssh"}
_ACCELERATE_BARE = {
    *("h", "help", "q", "quiet", "debug", "cpu", "multi_gpu", "tpu", "m", "module", "no_python", "same_network"),
    *("use_deepspeed", "use_fsdp", "use_parallelism_config", "use_megatron_lm", "enable_cpu_affinity"),
    *("dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation", "downcast_bf16"),
    *("tpu_cluster", "no_tpu_cluster", "tpu_use_sudo", "fp8_use_autocast_during_eval"),
}
_BARE = {"torchrun": _TORCHRUN_BARE, "deepspeed": _DEEPSPEED_BARE, "accelerate": _ACCELERATE_BARE}
_TOOLS = {
    "axolotl": {"train"},
    "llamafactory-cli": {"train"},
    "lmf": {"train"},
    "swift": {"sft", "pt", "rlhf"},
    "litgpt": {"finetune", "finetune_lora", "finetune_full", "finetune_adapter", "finetune_adapter_v2", "pretrain"},
    "tune": {"run"},
    "unsloth": {"train"},
    "vllm": {"serve"},
}
"""Training tools that launch their own workers, with the commands that train."""
_TRL_COMMANDS = {"sft", "dpo", "kto", "grpo", "reward", "rloo", "distillation", "orpo", "cpo"}
_NAMING = {"-n", "--name", "-p", "--python", "--with", "--extra", "--group", "--package", "--project", "--prefix"}
"""Options of wrappers (conda, uv) after which a word is a name, not the program."""
_TO_ACCELERATE = re.compile(
    r"accelerate_config|config_file|num_processes|num_machines|machine_rank|mixed_precision|multi_gpu|gpu_ids|cpu|"
    r"use_fsdp|use_deepspeed|use_parallelism_config|fsdp_(?!config$)\w+|zero\w+|deepspeed_\w+|offload_\w+_device|"
    r"parallelism_config_\w+|dynamo_\w+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch line: its launchers with their own flags, then the program they start."""

    launchers: tuple[str, ...] = ()
    """``torchrun``, ``accelerate``, ``deepspeed``, ``trl``, ``tool`` (starts its own workers); outermost first."""
    options: dict[str, Setting] = field(default_factory=dict)
    """The launchers' flags by name."""
    command: str | None = None
    """The path of a tool's own command, where it starts a recipe of another name: ``/venv/bin/tune``."""
    assignments: dict[str, str] = field(default_factory=dict)
    """``NAME=value`` in front of the command."""
    script: str | None = None
    module: str | None = None
    """Of ``python -m``."""
    arguments: tuple[str, ...] = ()
    """Of the program."""

    @property
    def program_name(self) -> str | None:
        """The script's or the module's name, for people; None where the line starts no Python program."""
        return PurePath(self.script).name if self.script else self.module

    @property
    def only_launches(self) -> bool:
        """Its process trains nothing itself. A tool's own command may do either: it trains where there is one GPU."""
        return bool(self.launchers) and "tool" not in self.launchers

    @property
    def trl_command(self) -> str | None:
        """``sft``, ``dpo``, ... when it is TRL's own script that runs."""
        if self.module and self.module.startswith("trl.scripts."):
            return self.module.rpartition(".")[2]
        parts = PurePath(self.script or "").parts
        return PurePath(parts[-1]).stem if parts[-3:-1] == ("trl", "scripts") else None


def parse_launch(argv: Sequence[str]) -> Launch:
    """A launch line taken apart.

    Wrappers in front (``env``, ``nohup``, ``srun``, ``uv run``, ...) are stepped over up to the first Python
    interpreter, launcher or script.
    """
    start = find_program_index(argv)
    found = Launch() if start is None else _command(list(argv[start:]), Launch())
    matches = [_ASSIGNMENT.fullmatch(token) for token in argv[:start] if not is_flag(token)]
    return replace(found, assignments={match[1]: match[2] for match in matches if match})


def split_launch_line(line: Sequence[str]) -> list[str]:
    """A launch line in words, also where it was pasted as one, or is the text of ``bash -c``.

    Of several commands the first that starts a program counts; redirections and what follows are left out.
    """
    if len(line) > 1:
        shell = PurePath(line[0]).name in ("sh", "bash", "zsh", "dash") and line[1].startswith("-") and "c" in line[1]
        return split_launch_line(line[2:3]) if shell and len(line) > 2 else list(line)
    lexer = shlex.shlex("".join(line).replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:  # an open quote
        return list(line)
    command: list[str] = []
    for word in [*words, ";"]:
        if not set(word) <= set("();<>|&"):
            command.append(word)
        elif find_program_index(command) is not None:
            break
        elif word[0] not in "<>":
            command = []
    if command and word[0] in "<>" and command[-1].isdigit():  # 2>&1
        command.pop()
    return command or list(line)


def find_program_index(argv: Sequence[str]) -> int | None:
    """Where in a line the interpreter, launcher or script stands; 0: nothing wraps it."""
    for index, token in enumerate(argv):
        names_something = index > 0 and argv[index - 1] in _NAMING
        if not names_something and not _ASSIGNMENT.fullmatch(token) and _starts(token, argv[index + 1 : index + 2]):
            return index
    return None


def _starts(token: str, following: Sequence[str]) -> bool:
    """Environments, folders and packages may be called ``trl`` or ``accelerate`` too: what follows tells."""
    name = PurePath(token).name
    if name == "accelerate":
        return list(following) == ["launch"]
    if name == "trl":
        return bool(following) and following[0] in _TRL_COMMANDS
    if name in _TOOLS:
        return bool(following) and following[0] in _TOOLS[name]
    if name == "automodel":
        return bool(following)
    return name in _NAMES or bool(_PYTHON.fullmatch(name)) or token.endswith(".py")


def _command(tokens: list[str], found: Launch) -> Launch:
    """A command from its program on."""
    if not tokens:
        return found
    name, rest = PurePath(tokens[0]).name, tokens[1:]
    if _PYTHON.fullmatch(name):
        return _python(rest, found)
    if name == "accelerate":
        return _launcher("accelerate", rest[1:], found) if rest[:1] == ["launch"] else found
    if name == "trl":
        return _trl(rest, found)
    if name in _NAMES:
        return _launcher(_NAMES[name], rest, found)
    if name == "tune" and rest[:1] == ["run"]:  # torchrun's flags, then the recipe
        return _launcher("torchrun", rest[1:], replace(found, launchers=(*found.launchers, "tool"), command=tokens[0]))
    if name in _TOOLS or name == "automodel":
        found = replace(found, launchers=(*found.launchers, "tool"))
    return replace(found, script=tokens[0], arguments=tuple(rest))


def _python(tokens: list[str], found: Launch) -> Launch:
    """The interpreter's own options up to the script or ``-m module``; ``-c`` starts no program we can read."""
    index = 0
    while index < len(tokens) and tokens[index].startswith("-") and tokens[index] != "-":
        option = tokens[index]
        if option.startswith("-c") or option == "--":
            return found
        if option == "-m" or (option[1:2] != "-" and option.endswith("m") and option[1] not in "XW"):
            return _module(tokens[index + 1 :], found)
        index += 2 if option in ("-X", "-W", "--check-hash-based-pycs") else 1
    return _command(tokens[index:], found) if index < len(tokens) else found


def _module(tokens: list[str], found: Launch) -> Launch:
    if not tokens:
        return found
    name, rest = tokens[0], tokens[1:]
    if name in ("accelerate", "accelerate.commands.accelerate_cli"):
        return _command(["accelerate", *rest], found)
    launcher = _MODULES.get(name)
    if name in _RUN_SCRIPTS:  # step over its own options
        script = next((index for index, token in enumerate(rest) if token.endswith(".py")), None)
        return found if script is None else replace(found, script=rest[script], arguments=tuple(rest[script + 1 :]))
    if launcher == "trl":
        return _trl(rest, found)
    if launcher:
        return _launcher(launcher, rest, found)
    return replace(found, module=name, arguments=tuple(rest))


def _launcher(name: str, tokens: list[str], found: Launch) -> Launch:
    """A launcher's flags, up to the program."""
    end = _own_flags(tokens, _BARE[name])
    options, _ = parse_flags(tokens[:end], where=f"of {name}")
    found = replace(found, launchers=(*found.launchers, name), options={**options, **found.options})
    rest = tokens[end:]
    if not rest:
        return found
    if "m" in options or "module" in options:
        return _module(rest, found)
    return replace(found, script=rest[0], arguments=tuple(rest[1:]))


def _own_flags(tokens: Sequence[str], bare: set[str]) -> int:
    """Where a launcher's own flags end and the program begins."""
    index = 0
    while index < len(tokens) and tokens[index].startswith("-"):
        takes_value = "=" not in tokens[index] and flag_name(tokens[index]) not in bare
        index += 2 if takes_value else 1
    return min(index, len(tokens))


def _trl(tokens: list[str], found: Launch) -> Launch:
    """``trl sft ...``: flags of accelerate among the script's own are the launcher's."""
    if not tokens or tokens[0] not in _TRL_COMMANDS:
        return found
    options, _ = parse_flags(tokens[1:], where="of trl")
    own = {name: option for name, option in options.items() if _TO_ACCELERATE.fullmatch(name)}
    return replace(
        found,
        launchers=(*found.launchers, "trl"),
        options={**own, **found.options},
        module=f"trl.scripts.{tokens[0]}",
        arguments=tuple(tokens[1:]),
    )


def count_world_info_ranks(world_info: str) -> int | None:
    """Ranks in the ``--world_info`` of DeepSpeed's per-node launcher: base64 of ``{host: [gpu, ...]}``."""
    try:
        hosts = json.loads(base64.urlsafe_b64decode(world_info))
    except (binascii.Error, ValueError):
        return None
    return sum(len(gpus) for gpus in hosts.values()) if isinstance(hosts, dict) else None
