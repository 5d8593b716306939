"""A training program as it is started, with everything known about where it runs: the input of every reader."""

import base64
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import msgspec

from ...common.errors import InputError
from ...common.limits import decode_json
from ...common.records import replace
from ...job.settings import MAX_GPUS
from ..arguments.table import library, read_file
from ..source.data_files import FilesystemView, layer_from_table, read_table
from ..source.evidence import FindingCollector
from ..source.flags import flag_name, is_flag, parse_flags
from ..source.settings import LayeredSettings, Setting, SettingsLayer, as_int, parse_digits, refusal

# Launch lines split into launchers (torchrun, accelerate, deepspeed, trl) and the program they start.
#
# Training tools with a command of their own (``axolotl train``) are known by the ``ToolCommand`` that each declares.


_PYTHON = re.compile(r"python[0-9.]*[a-z]?|pypy[0-9.]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SHELLS = ("sh", "bash", "zsh", "dash")


class _Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file ``launchers.toml``."""

    commands: Mapping[str, str]
    modules: Mapping[str, str]
    trl_commands: frozenset[str]
    notebook_commands: frozenset[str]
    kernels: frozenset[str]
    runners: frozenset[str]
    name_options: frozenset[str]
    without_value: Mapping[str, frozenset[str]]


_NAMES = read_file("launchers", _Names)
_ACCELERATE_FLAG_OF_TRL = re.compile(
    r"accelerate_config|config_file|num_processes|num_machines|machine_rank|mixed_precision|multi_gpu|gpu_ids|cpu|"
    r"use_fsdp|use_deepspeed|use_parallelism_config|fsdp_(?!config$)\w+|zero\w+|deepspeed_\w+|offload_\w+_device|"
    r"parallelism_config_\w+|dynamo_\w+"
)


class ToolCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A training tool's own command, which starts its ranks itself."""

    name: str
    """The executable: ``axolotl``."""
    subcommands: frozenset[str] | None = None
    """The first words that train; None: any word."""
    launcher: str | None = None
    """The launcher whose flags stand between the subcommand and the program; None: there are none."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch line: its launchers with their own flags, then the program they start."""

    launchers: tuple[str, ...] = ()
    """``torchrun``, ``accelerate``, ``deepspeed``, ``trl``, ``tool`` (starts its own ranks), ``notebook`` (starts a
    kernel, in which it runs a notebook); outermost first."""
    options: dict[str, Setting] = msgspec.field(default_factory=dict)
    """The launchers' flags by name."""
    command: str | None = None
    """The path of a tool's own command, where it starts a recipe of another name: ``/venv/bin/tune``."""
    assignments: dict[str, str] = msgspec.field(default_factory=dict)
    """``NAME=value`` in front of the command."""
    wrappers: tuple[str, ...] = ()
    """The words in front of the program or its launcher: ``env``, ``srun --gpus 1``."""
    script: str | None = None
    module: str | None = None
    """The module of ``python -m``."""
    arguments: tuple[str, ...] = ()
    """The program's own arguments."""

    @property
    def program_name(self) -> str | None:
        """The script's or the module's name, for people; None where the line starts no Python program."""
        return PurePath(self.script).name if self.script else self.module

    @property
    def only_launches(self) -> bool:
        """True if its process trains nothing itself. A tool's own command may do either: it trains on one GPU."""
        return bool(self.launchers) and "tool" not in self.launchers

    @property
    def is_kernel(self) -> bool:
        """True if it is a Jupyter kernel, which runs the cells of a notebook that its command line does not name."""
        return self.module in _NAMES.kernels

    @property
    def trl_command(self) -> str | None:
        """``sft``, ``dpo``, ... when TRL's own script runs."""
        if self.module and self.module.startswith("trl.scripts."):
            return self.module.rpartition(".")[2]
        parts = PurePath(self.script or "").parts
        return PurePath(parts[-1]).stem if parts[-3:-1] == ("trl", "scripts") else None


class LaunchParser:
    """Parses launch lines, given the commands of the training tools.

    Args:
        commands: the tools' own commands.
    """

    def __init__(self, commands: Iterable[ToolCommand]) -> None:
        self._tool_commands = {command.name: command for command in commands}

    def parse(self, argv: Sequence[str]) -> Launch:
        """Return a launch line as its parts.

        Wrappers in front (``env``, ``nohup``, ``srun``, ``uv run``, ...) are skipped up to the first Python
        interpreter, launcher or script.
        """
        start = self.find_program_index(argv)
        launch = Launch() if start is None else self._command(list(argv[start:]), Launch())
        if start and not launch.launchers:
            launch = _started_by_slurm(argv[:start], launch)
        matches = [_ASSIGNMENT.fullmatch(token) for token in argv[:start] if not is_flag(token)]
        assignments = {match[1]: match[2] for match in matches if match}
        return replace(launch, assignments=assignments, wrappers=tuple(argv[:start]))

    def split(self, line: Sequence[str]) -> list[str]:
        """Split a launch line into words, even if it was pasted as one word or is the text of ``bash -c``.

        Of several commands the first that starts a program counts; redirections and what follows are left out.
        """
        if len(line) > 1:
            text = _shell_text(line)
            return self.split([text]) if text is not None else list(line)
        lexer = shlex.shlex("".join(line).replace("\\\n", " "), posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        try:
            words = list(lexer)
        except ValueError:  # an open quote
            return list(line)
        return self._first_program(words) or list(line)

    def find_program_index(self, argv: Sequence[str]) -> int | None:
        """Return the position of the interpreter, launcher or script in a line; 0: no wrapper stands before it."""
        for index, token in enumerate(argv):
            is_name = index > 0 and argv[index - 1] in _NAMES.name_options
            if not is_name and not _ASSIGNMENT.fullmatch(token) and self._starts(token, argv[index + 1 : index + 2]):
                return index
        return None

    def _first_program(self, words: list[str]) -> list[str]:
        """Return the first command in a shell's words that starts a program, else the last one."""
        command: list[str] = []
        exported: list[str] = []
        for word in [*words, ";"]:
            if not set(word) <= set("();<>|&"):
                command.append(word)
            elif self.find_program_index(command) is not None:
                break
            elif word[0] not in "<>":
                exported += [each for each in command[1:] if command[0] == "export" and _ASSIGNMENT.fullmatch(each)]
                command = []
        if command and word[0] in "<>" and command[-1].isdigit():  # 2>&1
            command.pop()
        return [*exported, *command] if command else []

    def _starts(self, token: str, following: Sequence[str]) -> bool:
        """Return True if a word starts a program. Environments may be called ``trl`` too: the next word decides."""
        name = PurePath(token).name
        if name == "accelerate":
            return list(following) == ["launch"]
        if name == "trl":
            return bool(following) and following[0] in _NAMES.trl_commands
        if name == "jupyter":
            return bool(following) and f"jupyter-{following[0]}" in _NAMES.notebook_commands
        if name in self._tool_commands:
            subcommands = self._tool_commands[name].subcommands
            return bool(following) and (subcommands is None or following[0] in subcommands)
        if name in _NAMES.commands or name in _NAMES.notebook_commands:
            return True
        return bool(_PYTHON.fullmatch(name)) or token.endswith((".py", ".ipynb"))

    def _command(self, tokens: list[str], found: Launch) -> Launch:
        """Parse a command that begins with the program."""
        if not tokens:
            return found
        name, rest = PurePath(tokens[0]).name, tokens[1:]
        if _PYTHON.fullmatch(name):
            return self._python(rest, found)
        if name == "accelerate":
            return self._launcher("accelerate", rest[1:], found) if rest[:1] == ["launch"] else found
        if name == "trl":
            return _trl(rest, found)
        if name in _NAMES.commands:
            return self._launcher(_NAMES.commands[name], rest, found)
        if name == "jupyter" or name in _NAMES.notebook_commands:
            return _notebook(tokens, found)
        tool = self._tool_commands.get(name)
        if tool is not None:
            found = replace(found, launchers=(*found.launchers, "tool"))
        if tool is not None and tool.launcher and rest and rest[0] in (tool.subcommands or rest):
            return self._launcher(tool.launcher, rest[1:], replace(found, command=tokens[0]))
        return replace(found, script=tokens[0], arguments=tuple(rest))

    def _python(self, tokens: list[str], found: Launch) -> Launch:
        """Parse the interpreter's options up to the script or ``-m module``; the code of ``-c`` cannot be read."""
        index = 0
        while index < len(tokens) and tokens[index].startswith("-") and tokens[index] != "-":
            option = tokens[index]
            if option.startswith("-c") or option == "--":
                return found
            if option == "-m" or (option[1:2] != "-" and option.endswith("m") and option[1] not in "XW"):
                return self._module(tokens[index + 1 :], found)
            index += 2 if option in ("-X", "-W", "--check-hash-based-pycs") else 1
        return self._command(tokens[index:], found) if index < len(tokens) else found

    def _module(self, tokens: list[str], found: Launch) -> Launch:
        if not tokens:
            return found
        name, rest = tokens[0], tokens[1:]
        if name in _NAMES.runners:  # skip its own options
            script = next((index for index, token in enumerate(rest) if token.endswith(".py")), None)
            return found if script is None else replace(found, script=rest[script], arguments=tuple(rest[script + 1 :]))
        if name in _NAMES.modules:
            return self._command([_NAMES.modules[name], *rest], found)
        return replace(found, module=name, arguments=tuple(rest))

    def _launcher(self, name: str, tokens: list[str], found: Launch) -> Launch:
        """Parse a launcher's flags up to the program."""
        end = _end_of_flags(tokens, _NAMES.without_value[name])
        options, _ = parse_flags(tokens[:end], where=f"of {name}")
        found = replace(found, launchers=(*found.launchers, name), options={**options, **found.options})
        rest = tokens[end:]
        if not rest:
            return found
        if "m" in options or "module" in options:
            return self._module(rest, found)
        return replace(found, script=rest[0], arguments=tuple(rest[1:]))


def _started_by_slurm(wrappers: Sequence[str], launch: Launch) -> Launch:
    """Return the launch line with the tasks of ``srun -n 8`` or ``srun --nodes 2 --ntasks-per-node 4`` as its ranks."""
    at = next((index for index, word in enumerate(wrappers) if PurePath(word).name == "srun"), None)
    if at is None:
        return launch
    options, _ = parse_flags(wrappers[at + 1 :], where="of srun")
    for name in ("ntasks", "n"):
        if name in options:
            return replace(launch, launchers=("srun",), options={"num_processes": options[name]})
    return replace(launch, launchers=("srun",))


def count_world_info_ranks(world_info: str) -> int | None:
    """Return the ranks in ``--world_info`` of DeepSpeed's per-node launcher: base64 of ``{host: [gpu, ...]}``."""
    try:
        hosts = decode_json(base64.urlsafe_b64decode(world_info), dict[str, list[Any]])
    except ValueError:
        return None
    return sum(len(gpus) for gpus in hosts.values())


def _shell_text(line: Sequence[str]) -> str | None:
    """Return the text of ``bash -c TEXT``; None for any other command."""
    shell = PurePath(line[0]).name in _SHELLS and line[1].startswith("-") and "c" in line[1]
    return line[2] if shell and len(line) > 2 else None


def _end_of_flags(tokens: Sequence[str], without_value: frozenset[str]) -> int:
    """Return the position where a launcher's own flags end and the program begins."""
    index = 0
    while index < len(tokens) and tokens[index].startswith("-"):
        takes_value = "=" not in tokens[index] and flag_name(tokens[index]) not in without_value
        index += 2 if takes_value else 1
    return min(index, len(tokens))


def _notebook(tokens: list[str], found: Launch) -> Launch:
    """Parse ``papermill in.ipynb out.ipynb -p batch 4`` or ``jupyter nbconvert --execute x.ipynb``."""
    name, rest = PurePath(tokens[0]).name, tokens[1:]
    if name == "jupyter" and rest:
        name, rest = f"jupyter-{rest[0]}", rest[1:]
    names = [index for index, token in enumerate(rest) if token.endswith(".ipynb") and not token.startswith("-")]
    names = [index for index in names if index == 0 or rest[index - 1] != "--output"]
    if name not in _NAMES.notebook_commands or not names or (name == "jupyter-nbconvert" and "--execute" not in rest):
        return replace(found, script=tokens[0], arguments=tuple(tokens[1:]))
    others = (*rest[: names[0]], *rest[names[0] + 1 :])
    return replace(found, launchers=(*found.launchers, "notebook"), script=rest[names[0]], arguments=others)


def _trl(tokens: list[str], found: Launch) -> Launch:
    """Parse ``trl sft ...``: accelerate's flags among the script's own belong to the launcher."""
    if not tokens or tokens[0] not in _NAMES.trl_commands:
        return found
    options, _ = parse_flags(tokens[1:], where="of trl")
    own = {name: option for name, option in options.items() if _ACCELERATE_FLAG_OF_TRL.fullmatch(name)}
    return replace(
        found,
        launchers=(*found.launchers, "trl"),
        options={**own, **found.options},
        module=f"trl.scripts.{tokens[0]}",
        arguments=tuple(tokens[1:]),
    )


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A training program to read."""

    launch: Launch
    """The program's own command line; for a worker, the worker's."""
    launcher: Launch
    """The command line of the launcher that started it, whose flags a worker lacks; otherwise equal to ``launch``."""
    environ: Mapping[str, str]
    filesystem: FilesystemView
    """The file system in which the program's paths are resolved."""
    versions: Mapping[str, str]
    """Installed versions by distribution, where known."""
    findings: FindingCollector
    """Collects what is read."""
    reported: SettingsLayer = msgspec.field(default_factory=dict)
    """Settings that the running program reports itself, by transformers' names."""
    pid: int | None = None
    """The running program's pid in its own pid namespace; None: it is not running."""
    started_at: float | None = None
    """When it started, in Unix seconds; None: it is not running and has written no files."""
    self_started_ranks: int | None = None
    """Ranks that it started itself, without a launcher; None: it started none, or the number is unknown."""
    config_file: Path | None = None
    """A configuration file that was given by itself, without a launch line."""


# accelerate's settings from its YAML file and its workers' environment, by the names of its own flags.
#
# Names and meanings: ``accelerate/utils/launch.py`` and ``accelerate/commands/launch.py`` of accelerate 1.15.


_VARIABLE_PREFIXES = ("FSDP_", "PARALLELISM_CONFIG_")
"""Variables that begin so are flags of the same name in lower case."""
_SECTION_PREFIXES = {"fsdp_config": "fsdp_", "deepspeed_config": "", "parallelism_config": ""}
"""Sections of accelerate's file, and what its flags have in front of the names in them."""


def accelerate_layers(program: Program, files: SettingsLayer) -> list[SettingsLayer]:
    """Return accelerate's settings: the launcher's flags, its file, the environment."""
    options, launchers = program.launcher.options, program.launcher.launchers
    layers: list[SettingsLayer] = [options]
    if "trl" in launchers:
        layers.append(files)
    named = options.get("config_file") or options.get("accelerate_config")
    if named is None and "trl" in launchers:
        named = files.get("accelerate_config")
    path: Path | None = None
    if named is not None:
        shipped = _shipped_trl_config(str(named.value))
        path = None if shipped else program.filesystem.resolve(str(named.value))
        layers.append(shipped)
    elif "accelerate" in launchers or "trl" in launchers:
        path = _default_file(program.environ)
    if path is not None:
        try:
            layers.append(yaml_layer(read_table(path), source=path.name))
        except InputError as error:
            program.findings.warn(f"Could not read accelerate's configuration: {error.message}")
    return [*layers, environment_layer(program.environ)]


def environment_layer(environ: Mapping[str, str]) -> dict[str, Setting]:
    """Return the settings in variables that accelerate, torchrun and deepspeed set for a worker."""
    layer = {}
    names = library("accelerate").words["variable"]
    for variable, value in environ.items():
        flag = variable.lower() if variable.startswith(_VARIABLE_PREFIXES) else None
        name = names.get(variable) or flag
        if name and value.strip():  # empty ones count as not set
            layer[name] = Setting(value=value, origin=f"{variable} in the environment")
    return layer


def yaml_layer(table: Mapping[str, Any], *, source: str) -> dict[str, Setting]:
    """Return the settings in a configuration file of accelerate (``accelerate config`` writes one)."""
    top_level = {name: value for name, value in table.items() if not isinstance(value, dict)}
    layer = layer_from_table(top_level, source=source)
    for section, prefix in _SECTION_PREFIXES.items():
        inner = table.get(section)
        if isinstance(inner, dict):
            named = layer_from_table(inner, source=source, prefix=f"{section}.")
            layer.update({name if name.startswith(prefix) else prefix + name: item for name, item in named.items()})
    flag = library("accelerate").words["distributed_type"].get(str(table.get("distributed_type", "")).upper())
    if flag is not None:
        layer.setdefault(flag, Setting(value=True, origin=f"{source}: distributed_type"))
    if isinstance(table.get("parallelism_config"), dict) and table["parallelism_config"]:
        layer.setdefault("use_parallelism_config", Setting(value=True, origin=f"{source}: parallelism_config"))
    dynamo = table.get("dynamo_config")
    if isinstance(dynamo, dict) and dynamo.get("dynamo_backend"):
        origin = f"{source}: dynamo_config.dynamo_backend"
        layer["dynamo_backend"] = Setting(value=dynamo["dynamo_backend"], origin=origin)
    return layer


def _default_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file in the Hugging Face home that accelerate reads without ``--config_file``, if it is there."""
    home = environ.get("HF_HOME")
    if not home and environ.get("XDG_CACHE_HOME"):
        home = f"{environ['XDG_CACHE_HOME']}/huggingface"
    if not home and environ.get("HOME"):
        home = f"{environ['HOME']}/.cache/huggingface"
    for name in ("default_config.yaml", "default_config.json"):
        path = Path(home or "/nonexistent") / "accelerate" / name
        if os.access(path, os.R_OK):
            return path
    return None


def _shipped_trl_config(name: str) -> SettingsLayer:
    """Return a configuration that TRL ships; empty if it ships none of that name."""
    shipped = library("accelerate").default.get(f"trl_{name}")
    if shipped is None:
        return {}
    values = {"num_processes": 8, "mixed_precision": "bf16", **shipped}
    origin = f"--accelerate_config {name}, as TRL ships it"
    return {key: Setting(value=value, origin=origin) for key, value in values.items()}


# The number of ranks of a job: from a worker's environment, or from its launcher's settings.


_MAX_GPUS_OF_MACHINE = 1024
"""Servers have 8 or 16 GPUs, the largest racks 144 (NVIDIA's NVL144)."""
_DEVICE_WORDS = ("gpu", "auto", "cpu", "xpu")
"""torchrun's words for as many processes as there are devices."""
_SET_RANK = {"torchrun", "accelerate", "deepspeed", "trl"}
"""Launchers that set RANK for every process when there are several."""
_SEVERAL_RANKS = ("multi_gpu", "use_fsdp", "use_deepspeed", "use_parallelism_config")
"""Settings of accelerate that mean more than one rank."""


class WorldSize(msgspec.Struct, frozen=True, kw_only=True):
    """The number of ranks of a job."""

    ranks: Setting | None
    """None: unknown."""
    per_node: int | None = None
    """Ranks on each machine; None: unknown."""
    one_per_gpu: bool = False
    """One rank is counted, and the launcher starts one for each GPU of a machine that is not known."""
    refused: str | None = None
    """A sentence, without a full stop, on what is written and makes no sense; the number of ranks is unknown then."""


def read_world_size(
    launch: Launch,
    accelerate: LayeredSettings,
    environ: Mapping[str, str],
    *,
    started: bool = False,
    self_started_ranks: int | None = None,
    findings: FindingCollector | None = None,
) -> WorldSize:
    """Return the number of ranks: for a worker from its environment, for a launch line from the launcher's settings.

    Args:
        launch: the launcher's command line.
        accelerate: settings by accelerate's names, the launcher's own among them.
        environ: the environment of the worker or of the launch line; empty where it is hidden.
        started: the worker is already running apart from its launcher, so variables that are not set never will be.
        self_started_ranks: ranks that the program has started itself.
        findings: collects a number that makes no sense.
    """
    found = _checked(_find_world_size(launch, accelerate, environ, started, self_started_ranks))
    if findings is not None and found.refused is not None:
        findings.refuse_ranks(found.refused)
    return found


def checked_ranks(written: Setting | None, findings: FindingCollector) -> WorldSize:
    """Return a number of ranks that is written; none if it makes no sense, which is recorded."""
    found = _checked(WorldSize(ranks=written))
    if found.refused is not None:
        findings.refuse_ranks(found.refused)
    return found


def _checked(world: WorldSize) -> WorldSize:
    """Return the number of ranks, or why it makes no sense."""
    if world.ranks is None:
        return world
    written, number = world.ranks.value, as_int(world.ranks)
    if number is None and isinstance(written, int) and written > MAX_GPUS:
        number = written
    if number is None:
        return WorldSize(ranks=None, refused=refusal(world.ranks, "number of ranks"))
    if world.per_node is not None and world.per_node > _MAX_GPUS_OF_MACHINE:
        sentence = f"{world.ranks.origin}: {world.per_node:,} ranks on a machine are more GPUs than any machine has"
        return WorldSize(ranks=None, refused=f"{sentence} (at most {_MAX_GPUS_OF_MACHINE:,})")
    if number > MAX_GPUS:
        sentence = f"{world.ranks.origin}: {number:,} ranks are more GPUs than any cluster has"
        return WorldSize(ranks=None, refused=f"{sentence} (at most {MAX_GPUS:,})")
    return world


def _find_world_size(
    launch: Launch,
    accelerate: LayeredSettings,
    environ: Mapping[str, str],
    started: bool,
    self_started_ranks: int | None,
) -> WorldSize:
    """Return the number of ranks as it is written, which may make no sense; see ``read_world_size``."""
    if self_started_ranks is not None:
        origin = f"{self_started_ranks} processes that it started hold GPU memory"
        return WorldSize(ranks=Setting.default(self_started_ranks, origin), per_node=self_started_ranks)
    environment = environment_layer(environ)
    from_environment = WorldSize(
        ranks=environment.get("num_processes"), per_node=as_int(environment.get("processes_per_node"))
    )
    if "RANK" in environ and from_environment.ranks is not None:
        return from_environment
    launchers = set(launch.launchers)
    if started and environ and launchers & _SET_RANK and "tool" not in launchers:
        return WorldSize(ranks=Setting.default(1, f"{launch.launchers[-1]} did not set RANK: a single process"))
    if "torchrun" in launchers:
        return _torchrun_ranks(launch.options, environ)
    if "deepspeed" in launchers:
        return _deepspeed_ranks(launch.options, environ)
    if not launchers.isdisjoint(("accelerate", "trl", "tool")):
        return _accelerate_ranks(accelerate, environ, starts_one_per_gpu="tool" not in launchers)
    if from_environment.ranks is not None:
        return from_environment
    if "srun" in launchers:
        return WorldSize(ranks=launch.options.get("num_processes"))
    return WorldSize(ranks=Setting.default(1, "no launcher: a single process"))


def visible_gpus(environ: Mapping[str, str]) -> Setting | None:
    """Return the number of GPUs in CUDA_VISIBLE_DEVICES, as the number of ranks; None if it names none."""
    visible = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return Setting.default(len(visible), "the GPUs in CUDA_VISIBLE_DEVICES") if visible else None


def processes_per_node(environ: Mapping[str, str]) -> dict[str, Setting]:
    """Return the number of processes that LLaMA-Factory and ms-swift let torchrun start, from the environment."""
    written = {name: environ[name] for name in ("NPROC_PER_NODE", "NNODES") if environ.get(name)}
    if "NPROC_PER_NODE" not in written:
        return {}
    per_node, nodes = (parse_digits(written.get(name, "1")) for name in ("NPROC_PER_NODE", "NNODES"))
    if not per_node or not nodes:
        name = "NNODES" if per_node else "NPROC_PER_NODE"
        return {"num_processes": Setting(value=written[name], origin=f"{name} in the environment")}
    origin = f"NPROC_PER_NODE{' times NNODES' if nodes != 1 else ''} in the environment"
    return {
        "num_processes": Setting(value=per_node * nodes, origin=origin),
        "num_machines": Setting(value=nodes, origin=origin),
    }


def _accelerate_ranks(
    accelerate: LayeredSettings, environ: Mapping[str, str], *, starts_one_per_gpu: bool
) -> WorldSize:
    """Return the ranks that accelerate starts: torch.cuda.device_count() unless set (accelerate commands/launch.py)."""
    ranks = accelerate.find("num_processes") or visible_gpus(environ)
    if ranks is None and not any(accelerate.is_true(name) for name in _SEVERAL_RANKS):
        one = Setting.default(1, "one process unless set otherwise")
        on_gpus = starts_one_per_gpu and not accelerate.is_true("cpu", "use_cpu")
        return WorldSize(ranks=one, per_node=1, one_per_gpu=on_gpus)
    total, machines = as_int(ranks), as_int(accelerate.find("num_machines")) or 1
    return WorldSize(ranks=ranks, per_node=total // machines if total else None)


def _torchrun_ranks(options: SettingsLayer, environ: Mapping[str, str]) -> WorldSize:
    processes = options.get("nproc_per_node", Setting.default(1, "torchrun's default"))
    per_node = as_int(processes)
    if per_node is None and processes.value not in _DEVICE_WORDS:
        return WorldSize(ranks=processes)
    if per_node is None:  # as many as there are GPUs
        visible = visible_gpus(environ)
        per_node = as_int(visible)
        processes = visible or processes
    given = options.get("nnodes", Setting.default(1, "torchrun's default"))
    nodes = as_int(given.with_value(str(given.value).rpartition(":")[2]))
    if nodes is None:
        return WorldSize(ranks=given)
    if per_node is None:
        return WorldSize(ranks=None)
    origin = processes.origin if nodes == 1 else f"{processes.origin} times {options['nnodes'].origin}"
    ranks = Setting(value=per_node * nodes, origin=origin, written=processes.written)
    return WorldSize(ranks=ranks, per_node=per_node)


def _deepspeed_ranks(options: SettingsLayer, environ: Mapping[str, str]) -> WorldSize:
    if "world_info" in options:
        total = count_world_info_ranks(str(options["world_info"].value))
        return WorldSize(ranks=Setting(value=total, origin="--world_info of deepspeed") if total else None)
    processes, include = options.get("num_gpus"), options.get("include")
    if processes is None and include is not None and ":" in str(include.value):
        hosts = str(include.value).split("@")
        return WorldSize(ranks=include.with_value(sum(len(host.partition(":")[2].split(",")) for host in hosts)))
    processes = processes or visible_gpus(environ)
    machines = options.get("num_nodes", Setting.default(1, "deepspeed's default"))
    per_node, nodes = as_int(processes), 1 if str(machines.value) == "-1" else as_int(machines)
    if nodes is None:
        return WorldSize(ranks=machines)
    if processes is None or per_node is None:
        return WorldSize(ranks=None if processes is None or str(processes.value) == "-1" else processes)
    return WorldSize(ranks=processes.with_value(per_node * nodes), per_node=per_node)
