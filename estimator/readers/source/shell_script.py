"""Reads the launch line out of a shell script, as data: variables and arrays are filled in, nothing is run.

What only running the script would tell (``$(...)``, a variable that nothing sets) is refused where memory may depend on
it. Words are expanded as bash's manual has it (Shell Parameters, Parameter Expansion, Arrays).
"""

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from pathlib import Path, PurePath

import msgspec

from ...common.errors import InputError
from ...common.paths import is_file
from ...common.records import replace
from ...common.untrusted_files import read_file
from .flags import IGNORED_FLAGS

SUFFIXES = (".sh", ".bash", ".zsh", ".sbatch", ".slurm")
_SHELLS = ("sh", "bash", "zsh", "dash", "sbatch", "source", ".")
_SHEBANG = re.compile(rb"#!\s*\S*?\b(ba|z|da)?sh\b")
_MAX_FILLED_IN = 2**18
_MAX_NESTING = 4
"""Scripts that one script calls in turn."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ARRAY = re.compile(
    r"^[ \t]*(?:(?:export|declare|local|readonly)\s+(?:-\w+\s+)*)?(\w+)(\+?)=\(([^()]*)\)", re.MULTILINE
)
_VARIABLE = re.compile(r"\$(?:(?P<name>\w+|[@*])|\{(?P<braced>\w+|[@*])(?:\[[@*]\])?(?::?-(?P<default>[^{}]*))?\})")
_EMPTY_DEFAULT = re.compile(r"""(?<=:-)(?:''|"")\}""")
_OWN_FOLDER = re.compile(r"\$\(\s*dirname\s+(?:--\s+)?\"?(?:\$0|\$\{?BASH_SOURCE(?:\[0\]\})?)\"?\s*\)")
_QUOTED_LIST = re.compile(r'"(\$(?:@|\{\w+\[@\]\}))"')
"""Each element is a word of its own, in quotes or not."""
_ARITHMETIC = re.compile(r"\$\(\(((?:[^()]|\([^()]*\))*)\)\)")
_EXPR = re.compile(r"(?:\$\(|(`))\s*expr\s+([^()`]*)(?(1)`|\))")
_NAME = re.compile(r"\$?\{?\b([A-Za-z_]\w*)\}?")
_LONGEST_SUM = 200
_OPERATORS: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,  # as bash divides
    ast.Mod: operator.mod,
}
_REDIRECTION = re.compile(r"(?<!\S)\d?(?:&>>?|>>?|<)\s*&?\S+")
_HERE_DOCUMENT = re.compile(r"(?<!<)<<(?!<)-?\s*['\"]?(\w+)['\"]?")
_SUBSTITUTION = re.compile(r"\$\((?!\()(?:[^()]|\([^()]*\))*\)|`[^`]*`")
_OPEN = re.compile(r"\$|`")
_ARGUMENT = re.compile(r"\$\{?(?:[1-9]|OPTARG)\b")
_COMMENT = re.compile(r"(^|\s)#.*$")
_DECLARES = ("export", "declare", "local", "readonly", "typeset", "set")
_OPENS, _CLOSES = ("if", "for", "while", "until", "case"), ("fi", "done", "esac")
_BEFORE_COMMANDS = ("then", "else", "elif", "do", "time", "exec", "!", "{", "}", *_OPENS)
_TESTS = ("[", "[[", "test", "echo", "printf")
"""Commands that may name a program and start none."""
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "srun", "mpirun")
_SLURM = re.compile(r"#SBATCH[ \t]+(?P<words>[^#\n]*)")
StartsProgram = Callable[[Sequence[str]], bool]


class ScriptLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """The launch line of a shell script."""

    words: tuple[str, ...]
    """The line, with the variables that the script exports in front."""
    folder: Path
    """The folder in which it is started."""
    place: str
    """The script and the line's number."""
    others: tuple[int, ...]
    """Lines that start other programs."""
    scripts: tuple[Path, ...]
    """The scripts that were read on the way to it: they decide what is started."""
    unknown: str | None = None
    """A value that is not known and on which memory does not depend, in a sentence: the line cannot run without it."""

    @property
    def note(self) -> str:
        """Where it was read, and what is not counted."""
        numbers = f"{'s' * (len(self.others) > 1)} {', '.join(map(str, self.others))}"
        return f"The launch line is {self.place}{f'; not counted: line{numbers}' if self.others else ''}."


def shell_script_in(line: Sequence[str], folder: Path) -> int | None:
    """Return the position of a shell script in a command line; None: it runs none that can be read.

    Args:
        line: ``run.sh``, ``bash run.sh``, ``NAME=value ./run.sh 8``.
        folder: in which its path is resolved.
    """
    for at, word in enumerate(line):
        if _ASSIGNMENT.fullmatch(word) or word.startswith("-") or PurePath(word).name in (*_SHELLS, "env", "nohup"):
            continue
        if PurePath(word).name.startswith(("python", "pypy")):  # also one that is a script itself
            return None
        path = folder / word
        behind_shell = at > 0 and any(PurePath(before).name in _SHELLS for before in line[:at])
        return at if (behind_shell or word.endswith(SUFFIXES) or _has_shebang(path)) and is_file(path) else None
    return None


def read_shell_script(
    line: Sequence[str], *, folder: Path, environ: Mapping[str, str], starts_program: StartsProgram, depth: int = 0
) -> ScriptLaunch | None:
    """Return the launch line that a shell script runs; None: the command line runs no shell script.

    Args:
        line: of the script, with its arguments.
        folder: in which it is started.
        environ: variables that are set already.
        starts_program: tells a command that starts a training program.
        depth: number of scripts that lead to this one.

    Raises:
        InputError: it cannot be read, starts nothing or several programs, or uses what is not known.
    """
    at = shell_script_in(line, folder)
    if at is None:
        return None
    path = folder / line[at]
    set_before = dict(word.split("=", 1) for word in line[:at] if _ASSIGNMENT.fullmatch(word))
    arguments = {str(number): word for number, word in enumerate(line[at + 1 :], 1)}
    rest = shlex.join(line[at + 1 :])
    variables = {**environ, **set_before, **arguments, "@": rest, "*": rest, "0": str(path)}
    script = _Script(path, folder, variables, _given=environ.keys() | set_before.keys())
    found = [each for each in script.commands() if starts_program(each.words) or _calls_script(each)]
    chosen = _only_one(found, Path(line[at]))
    if not starts_program(chosen.words):
        if depth >= _MAX_NESTING:
            raise InputError(f"{path}: scripts call other scripts {depth} levels deep; give the launch line after --")
        exported = [f"{name}={value}" for name, value in {**set_before, **script.exported}.items()]
        called, folder = [*exported, *chosen.words], chosen.folder
        nested = read_shell_script(
            called, folder=folder, environ=environ, starts_program=starts_program, depth=depth + 1
        )
        if nested is not None:
            return replace(nested, scripts=(path, *nested.scripts))
    unknown = _unknown_value(chosen, Path(line[at]))
    exported = [
        f"{name}={value}" for name, value in {**set_before, **script.exported}.items() if not _OPEN.search(value)
    ]
    own = sorted(_without_ignored(chosen.words))
    return ScriptLaunch(
        words=(*exported, *script.of_slurm(chosen.words)),
        folder=chosen.folder,
        place=f"{path.name}, line {chosen.line}",
        others=tuple(each.line for each in found if sorted(_without_ignored(each.words)) != own),
        scripts=(path,),
        unknown=unknown,
    )


class _Command(msgspec.Struct, frozen=True, kw_only=True):
    words: tuple[str, ...]
    line: int
    folder: Path


def _calls_script(command: _Command) -> bool:
    return shell_script_in(command.words, command.folder) is not None and command.words[0] not in ("source", ".")


def _only_one(found: Sequence[_Command], path: Path) -> _Command:
    """Return the command that trains: the only one, or the only one that a launcher starts, and not in two ways.

    Raises:
        InputError: there is none, or which one trains is open.
    """
    alike = list({tuple(sorted(_without_ignored(each.words))): each for each in reversed(found)}.values())[::-1]
    launched = [each for each in alike if any(PurePath(word).name in _LAUNCHERS for word in each.words)]
    chosen = alike if len(alike) == 1 else launched
    programs = [name for each in alike for name in {word for word in each.words if word.endswith(".py")}]
    alternatives = len(chosen) == 1 and any(programs.count(word) > 1 for word in chosen[0].words)
    if len(chosen) == 1 and not alternatives:
        return chosen[0]
    if not alike:
        raise InputError(
            f"{path} is a shell script that starts no Python program that vramtop can read; give the launch line "
            "after --, or a job file"
        )
    lines = ", ".join(str(each.line) for each in alike)
    example = shlex.join(alike[0].words)[:80]
    raise InputError(
        f"{path} starts several programs (lines {lines}); give one of them after --: vramtop fit -- {example}"
    )


def _is_ignored(words: Sequence[str], at: int) -> bool:
    """Return True for a value on which memory does not depend."""
    name = words[at].partition("=")[0] if "=" in words[at] else words[at - 1] if at else ""
    return IGNORED_FLAGS.fullmatch(name.lower().replace("-", "_").lstrip("_")) is not None


def _without_ignored(words: Sequence[str]) -> Iterator[str]:
    return (word for at, word in enumerate(words) if word.startswith("-") or not _is_ignored(words, at))


def _unknown_value(command: _Command, path: Path) -> str | None:
    """Return a sentence on a word of a command that is not known and on which memory does not depend; None: all are.

    Raises:
        InputError: one depends on what is not known, and the memory on it.
    """
    sentence = None
    for at, word in enumerate(command.words):
        if not _OPEN.search(word):
            continue
        found = _VARIABLE.search(word)
        what, name = (found[0], found["name"] or found["braced"]) if found else (word, word.strip("${}"))
        give = (
            f"its arguments after it, as in vramtop fit -- bash {path} VALUE"
            if what[1:2].isdigit()
            else (f"{name}=VALUE before vramtop")
        )
        give = "" if "(" in what else f"{give}, or "
        sentence = f"{path}, line {command.line}: the value of {what} is not known; give {give}the launch line after --"
        if not _is_ignored(command.words, at):
            raise InputError(sentence)
    return sentence


def _has_shebang(path: Path) -> bool:
    try:
        return path.suffix == "" and is_file(path) and _SHEBANG.match(read_file(path)[:80]) is not None
    except OSError:
        return False


class _Script(msgspec.Struct):
    path: Path
    folder: Path
    variables: dict[str, str]
    exported: dict[str, str] = msgspec.field(default_factory=dict)
    _slurm: list[str] = msgspec.field(default_factory=list)
    _filled_in: int = 0
    """Characters of variables that were filled in so far."""
    _depth: int = 0
    """Number of ``if``, ``for``, ... around a line."""
    _in_branch: set[str] = msgspec.field(default_factory=set)
    """Variables that are set in one branch and may have another value after it."""
    _given: Set[str] = frozenset()
    """Variables that were set before it started: a branch, a loop or a command does not make them unknown."""

    def commands(self) -> Iterator[_Command]:
        """Yield each command with its words expanded, but for what is not known.

        Raises:
            InputError: the file cannot be read.
        """
        try:
            text = read_file(self.path).decode(errors="replace")
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}") from None
        self._read_slurm(text)
        for number, line in _lines(text):
            if (array := _ARRAY.match(line)) is not None:
                before = f"{self.variables.get(array[1], '')} " if array[2] else ""
                self._set(array[1], before + self._expand(" ".join(array[3].split())))
                continue
            for part, may_run in _commands_of(line):
                self._depth += may_run
                if command := self._take(_unwrapped(_words(self._expand(part)))):
                    yield _Command(words=tuple(command), line=number, folder=self.folder)
                self._depth -= may_run

    def of_slurm(self, words: Sequence[str]) -> Sequence[str]:
        """Return the words with the options of ``#SBATCH`` behind ``srun``, which has them too."""
        at = next((at for at, word in enumerate(words) if PurePath(word).name == "srun"), None)
        return words if at is None else (*words[: at + 1], *self._slurm, *words[at + 1 :])

    def _read_slurm(self, text: str) -> None:
        names = {"--nodes": "SLURM_NNODES", "-N": "SLURM_NNODES", "--ntasks": "SLURM_NTASKS", "-n": "SLURM_NTASKS"}
        names |= {"--gpus-per-node": "SLURM_GPUS_ON_NODE", "--gres": "SLURM_GPUS_ON_NODE"}
        for found in _SLURM.finditer(text):
            self._slurm += found["words"].replace('"', "").split()
        words = [part for word in self._slurm for part in word.split("=", 1)]
        for flag, value in pairwise(words):
            if flag in names and (digits := value.rpartition(":")[2]).isdecimal():
                self.variables.setdefault(names[flag], digits)
        if (gpus := self.variables.get("SLURM_GPUS_ON_NODE")) is not None:
            self.exported.setdefault("SLURM_GPUS_ON_NODE", gpus)
        if "SLURM_NNODES" in self.variables:
            self.variables.setdefault("SLURM_JOB_NUM_NODES", self.variables["SLURM_NNODES"])

    def _take(self, words: list[str]) -> list[str]:
        """Take what a command sets, and return what it starts; empty: nothing."""
        while words and words[0] in (*_BEFORE_COMMANDS, *_CLOSES):
            word = words.pop(0)
            self._depth += (word in _OPENS) - (word in _CLOSES)
            if word == "for":
                self._loop(words)
                return []
            if word in ("while", "until"):  # which may go through the arguments
                self._forget_arguments()
            if word == "case" and "in" in words:
                del words[: words.index("in") + 1]
        if self._depth and words and words[0].endswith(")") and "(" not in words[0]:
            del words[0]  # a pattern of case
        if words[:1] == ["shift"]:
            self._shift(words[1] if len(words) > 1 else "1")
            return []
        if words and words[0] in _TESTS:
            return []
        if words and words[0] == "cd" and len(words) > 1 and not _OPEN.search(words[1]):
            self.folder = self.folder / words[1]
            return []
        exports = bool(words) and words[0] == "export"
        values = [
            word for word in (words[1:] if words and words[0] in _DECLARES else words) if not word.startswith("-")
        ]
        if all(_ASSIGNMENT.fullmatch(word) for word in values):
            for word in values:
                self._assign(word, exports=exports)
            return []
        return [] if exports else words

    def _assign(self, word: str, *, exports: bool) -> None:
        found = _ASSIGNMENT.fullmatch(word)
        if found is None:
            return
        name, more, value = found[1], found[2], found[3]
        self._set(name, f"{self.variables.get(name, '')}{value}" if more else value)
        if exports or name in self.exported:
            self.exported[name] = self.variables.get(name, f"${name}")

    def _shift(self, number: str) -> None:
        """Let the arguments move on by a number of them."""
        if self._depth or not number.isdecimal() or "@" not in self.variables:
            self._forget_arguments()
            return
        rest = shlex.split(self.variables["@"])[int(number) :]
        self._forget_arguments()
        self.variables |= {str(at): word for at, word in enumerate(rest, 1)}
        self.variables |= {"@": shlex.join(rest), "*": shlex.join(rest)}

    def _forget_arguments(self) -> None:
        if not self.variables.get("@", "none"):
            return  # there are none
        for name in [name for name in self.variables if name in "@*" or (name.isdecimal() and name != "0")]:
            del self.variables[name]

    def _set(self, name: str, value: str) -> None:
        """Set a variable; one that a branch or a command decides is not known from then on."""
        before = self.variables.get(name)
        if self._depth and (name in self._given or (_ARGUMENT.search(value) and not self.variables.get("@", "none"))):
            return
        if self._depth and _ARGUMENT.search(value):
            self._in_branch.add(name)
        if "$(...)" in value and " " not in value:  # what a command prints
            if name not in self._given:
                self.variables.pop(name, None)
        elif name in self._in_branch or (self._depth and before is not None and before != value):
            self.variables.pop(name, None)
            self._in_branch.add(name)
        else:
            self.variables[name] = value

    def _loop(self, words: Sequence[str]) -> None:
        """Take the variable of ``for NAME in VALUE ...``: its value is known if there is one, or if it is given."""
        if words and words[0] not in self._given:
            self.variables.pop(words[0], None)
            if len(words) == 3 and words[1] == "in" and not _OPEN.search(words[2]):
                self.variables[words[0]] = words[2]

    def _expand(self, text: str) -> str:
        """Return the text with the values of known variables, outside of single quotes."""

        def value(found: re.Match[str]) -> str:
            name = found["name"] or found["braced"]
            known = self.variables.get(name)
            self._filled_in += len(known or "")
            if self._filled_in > _MAX_FILLED_IN:  # A=$A$A, again and again
                raise InputError(f"{self.path}: its variables are too long to be filled in")
            if known or (known is not None and name in "@*"):
                return known
            return found["default"] if found["default"] is not None and name not in self._in_branch else found[0]

        text = _EMPTY_DEFAULT.sub("}", text)
        text = _OWN_FOLDER.sub(lambda _: str(self.path.parent.absolute()), text)
        text = _EXPR.sub(lambda found: "$((" + found[2].replace("\\", "") + "))", text)
        text = _QUOTED_LIST.sub(r"\1", _ARITHMETIC.sub(self._computed, text))
        text = _SUBSTITUTION.sub("$(...)", text)
        parts = re.split(r"('[^']*')", text)
        return "".join(part if part.startswith("'") else _VARIABLE.sub(value, part) for part in parts)

    def _computed(self, found: re.Match[str]) -> str:
        """Return the result of ``$((A * $B))``; ``$(...)`` where it is not known."""
        known = _NAME.sub(lambda each: self.variables.get(each[1], each[0]), found[1])[:_LONGEST_SUM]
        try:
            return str(_result(ast.parse(known.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ArithmeticError, KeyError, RecursionError, MemoryError):
            return "$(...)"


def _result(node: ast.AST) -> int:
    """Return the result of arithmetic on whole numbers.

    Raises:
        KeyError, ArithmeticError: it is something else, or too large.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < _MAX_FILLED_IN**3:
        return node.value
    if not isinstance(node, ast.BinOp):
        raise KeyError(type(node))
    return _OPERATORS[type(node.op)](_result(node.left), _result(node.right))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers, continued lines and arrays joined, without comments."""
    waiting, begun, ends = "", 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if ends:  # the text that a command reads
            ends = "" if line.strip() == ends else ends
            continue
        ends = found[1] if (found := _HERE_DOCUMENT.search(line)) else ""
        begun = begun if waiting else number
        whole = f"{waiting} {_COMMENT.sub('', line)}" if waiting else _COMMENT.sub("", line)
        if whole.rstrip().endswith("\\"):
            waiting = whole.rstrip()[:-1]
        elif re.search(r"\w\+?=\([^()]*$", whole):
            waiting = whole
        else:
            waiting = ""
            yield begun, whole
    if waiting:
        yield begun, waiting


def _commands_of(line: str) -> Iterator[tuple[str, bool]]:
    """Yield the commands of a line, which ``;``, ``&&``, ``||``, ``|`` and ``&`` separate, and if it may not run."""
    begun, quote, depth, may_run = 0, "", 0, False
    for at, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        elif character in "({":
            depth += line[at - 1 : at] == "$" or depth > 0
        elif character in ")}":
            depth = max(0, depth - 1)
        elif not depth and (character in ";|" or (character == "&" and ">" not in line[max(0, at - 1) : at + 2])):
            yield line[begun:at], may_run
            begun, may_run = at + 1, line[at - 1 : at + 1] in ("&&", "||")
    yield line[begun:], may_run


def _unwrapped(words: list[str]) -> list[str]:
    """Return the command in ``eval "$COMMAND"`` and ``srun bash -c "$COMMAND"``."""
    if words[:1] == ["eval"]:
        return _words(" ".join(words[1:]))
    at = next((at for at, (shell, flag) in enumerate(pairwise(words)) if shell in _SHELLS and flag == "-c"), None)
    return words if at is None or len(words) < at + 3 else [*words[:at], *_words(words[at + 2])]


def _words(command: str) -> list[str]:
    """Return the words of a command, without redirections; none if a quote is open."""
    try:
        return shlex.split(_REDIRECTION.sub(" ", command))
    except ValueError:
        return []
