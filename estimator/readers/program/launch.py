"""Launch lines split into launchers (torchrun, accelerate, deepspeed, trl) and the program they start.

Training tools with a command of their own (``axolotl train``) are known by the ``ToolCommand`` that each declares.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

import msgspec

from ...common.records import replace
from ..arguments.table import read_file
from ..source.flags import flag_name, is_flag, parse_flags
from ..source.settings import Setting, parse_digits

_PYTHON = re.compile(r"python[0-9.]*[a-z]?|pypy[0-9.]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SHELLS = ("sh", "bash", "zsh", "dash")
MPI_LAUNCHERS = ("mpirun", "mpiexec", "orterun")


class _Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file ``launchers.toml``."""

    commands: Mapping[str, str]
    modules: Mapping[str, str]
    trl_commands: frozenset[str]
    notebook_commands: frozenset[str]
    kernels: frozenset[str]
    runners: frozenset[str]
    name_options: frozenset[str]
    accelerate_flags: str
    without_value: Mapping[str, frozenset[str]]


_NAMES = read_file("launchers", _Names)


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
            launch = _started_by_wrapper(argv[:start], launch)
        matches = [_ASSIGNMENT.fullmatch(token) for token in argv[:start] if not is_flag(token)]
        assignments = {match[1]: match[2] for match in matches if match}
        return replace(launch, assignments=assignments, wrappers=tuple(argv[:start]))

    def split(self, line: Sequence[str]) -> list[str]:
        """Split a launch line into words, even if it was pasted as one word or is the text of ``bash -c``.

        Of several commands the first that starts a program counts; redirections and what follows are left out.
        """
        if len(line) > 1:
            shell = PurePath(line[0]).name in _SHELLS and line[1].startswith("-") and "c" in line[1]  # bash -c TEXT
            return self.split([line[2]]) if shell and len(line) > 2 else list(line)
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
        for full in ("nnodes", "nproc_per_node"):  # argparse takes their beginnings too
            short = next((each for each in options if len(each) > 1 and full.startswith(each)), full)
            options |= {full: options[short]} if short in options else {}
        found = replace(found, launchers=(*found.launchers, name), options={**options, **found.options})
        rest = tokens[end:]
        if not rest:
            return found
        if "m" in options or "module" in options:
            return self._module(rest, found)
        return replace(found, script=rest[0], arguments=tuple(rest[1:]))


def _started_by_wrapper(wrappers: Sequence[str], launch: Launch) -> Launch:
    """Return the launch line with the tasks of its wrapper as ranks.

    ``srun -n 8``, ``srun --nodes 2 --ntasks-per-node 4`` and ``mpirun -np 4`` have some.
    """
    at = next((index for index, word in enumerate(wrappers) if PurePath(word).name in ("srun", *MPI_LAUNCHERS)), None)
    if at is None:
        return launch
    name = PurePath(wrappers[at]).name
    options, _ = parse_flags(wrappers[at + 1 :], where=f"of {name}")
    names = ("np", "n", "c") if name in MPI_LAUNCHERS else ("ntasks", "n")
    tasks = next((options[each] for each in names if each in options), None)
    per_node, nodes = options.get("ntasks_per_node"), options.get("nodes") or options.get("N")
    each, times = (None if given is None else parse_digits(str(given.value)) for given in (per_node, nodes))
    if tasks is None and each and (nodes is None or times):
        tasks = Setting(value=each * (times or 1), origin="--ntasks-per-node times --nodes of srun")
    return replace(launch, launchers=("srun",), options={} if tasks is None else {"num_processes": tasks})


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
    own = {name: option for name, option in options.items() if re.fullmatch(_NAMES.accelerate_flags, name)}
    return replace(
        found,
        launchers=(*found.launchers, "trl"),
        options={**own, **found.options},
        module=f"trl.scripts.{tokens[0]}",
        arguments=tuple(tokens[1:]),
    )
