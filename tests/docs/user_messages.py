"""Finds, in the code, every sentence that tells a user that something is wrong, missing or not counted.

A literal is such a sentence when it is given to an error or to a function that speaks (``notify``, ``warn``, ...),
when the name that it is given to says so (``reason``, ``refusal``, ...), when a function with such a name returns it,
or when it stands in one of the modules of ``TABLES``.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("estimator", "monitor", "tui")
CALLS = {
    *("notify", "warn", "fail", "_fail", "error", "warning", "Finding", "Issue", "Anomaly", "UncountedSetting"),
    *("HTTPForbidden", "HTTPServiceUnavailable", "HTTPNotFound", "HTTPMethodNotAllowed", "process_limit_error"),
    "inconclusive",
}
"""Functions and classes whose words a user reads when something is wrong, besides exceptions."""
WORDS = {
    *(
        "reason",
        "reasons",
        "refusal",
        "refused",
        "error",
        "failure",
        "fault",
        "faults",
        "problem",
        "problems",
        "warning",
    ),
    *("warnings", "notice", "notices", "why", "hint", "advice", "remedy", "doubt", "doubts", "unavailable", "unusable"),
    *(
        "sentence",
        "sentences",
        "mistake",
        "message",
        "messages",
        "explanation",
        "trace",
        "missing",
        "unread",
        "uncounted",
    ),
    *("unsupported", "explain", "unusable", "complaint", "describe"),
}
"""A name with one of these words holds, or returns, such a sentence."""
TABLES = (
    "estimator/crash/explanation.py",
    "estimator/crash/snapshot/*.py",
    "estimator/job/rules/optimizers/by_name.py",
    "estimator/worker/measure/measurable.py",
    "estimator/worker/memory/allocator_settings.py",
    "monitor/anomalies.py",
    "monitor/attach/attachment.py",
    "monitor/attach/read_run.py",
    "monitor/attach/read_run.py",
    "monitor/attach/automatic/follow_program.py",
    "monitor/board/fit.py",
    "monitor/board/watchlist.py",
    "monitor/board/watchlist.py",
    "monitor/doctor.py",
    "monitor/fleet/placing.py",
    "monitor/fleet/prometheus/prometheus_fleet.py",
    "monitor/fleet/prometheus/prometheus_fleet.py",
    "monitor/fleet/remote.py",
    "monitor/fleet/remote.py",
    "monitor/fleet/remote.py",
    "monitor/history/history.py",
    "monitor/host/processes.py",
    "monitor/host/process_info.py",
    "monitor/host/terminate.py",
    "monitor/preflight/checks/*.py",
    "monitor/preflight/facts.py",
    "monitor/probe/snapshots/*.py",
    "monitor/sources/nvml/*.py",
    "monitor/sources/recording.py",
    "monitor/sources/recording.py",
    "monitor/storage/settings/in_force.py",
    "tui/cli/commands/explain.py",
    "tui/cli/fitting/guard.py",
    "tui/tty/terminal_facts.py",
)
"""Modules whose sentences all tell of trouble."""
_NO_PROSE = re.compile(r"\\[dwsb]|\(\?|CREATE TABLE|max by \(|PATH=|command -v|^import ")
"""Expressions, queries and programs."""
_WITHOUT_TEXT = (ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop, ast.arguments, ast.alias)
_FIXED_WORDS = 3
_TABLE_WORDS = 4


@dataclass(frozen=True)
class Message:
    """One sentence of the code, with ``{expression}`` where the program puts something in."""

    place: str
    line: int
    text: str
    how: str

    @cached_property
    def sentence(self) -> str:
        """The text with ``{}`` for every placeholder."""
        return without_placeholders(self.text)


@cache
def messages(root: Path = ROOT) -> tuple[Message, ...]:
    """Return every sentence of the three packages that tells a user of trouble, in the order of the code."""
    trees = {path: ast.parse(path.read_text()) for each in PACKAGES for path in sorted((root / each).rglob("*.py"))}
    errors = _error_classes(trees.values())
    found = (
        message for path, tree in trees.items() for message in _messages(tree, str(path.relative_to(root)), errors)
    )
    return tuple(dict.fromkeys(found))


def _error_classes(trees: Iterable[ast.Module]) -> set[str]:
    names = {"ValueError", "ArgumentTypeError", "RuntimeError", "SystemExit"}
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    names |= {node.name for node in classes if node.name.endswith(("Error", "Exception"))}
    return names | {node.name for node in classes if any(ast.unparse(base) in names for base in node.bases)}


def _messages(tree: ast.Module, place: str, errors: set[str]) -> Iterator[Message]:
    if place.endswith("/__init__.py"):
        return
    table = any(fnmatchcase(place, pattern) for pattern in TABLES)
    parents: dict[ast.AST, ast.AST] = {}
    literals: list[ast.AST] = []
    nodes: list[ast.AST] = [tree]
    while nodes:  # ast.walk, with the parents; several times as fast
        node = nodes.pop()
        for name in node._fields:
            value = getattr(node, name, None)
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, ast.AST) and not isinstance(child, _WITHOUT_TEXT):
                    parents[child] = node
                    nodes.append(child)
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
            literals.append(node)
    for node in reversed(literals):
        text = _literal(node)
        if text is None or _is_part(node, parents) or _is_docstring_or_compared(node, parents):
            continue
        how = _speaker(node, parents, errors) or ("table" if table else "")
        words = 0 if how in errors else _TABLE_WORDS if how == "table" else _FIXED_WORDS
        if how and _is_sentence(text, words):
            yield Message(place, node.lineno, text.strip(), how)


def _literal(node: ast.AST) -> str | None:
    """Return the text of a string, of an f-string, or of several that are added; None for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}" for part in values
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = [_literal(left), _literal(right)]
            if any(texts):
                return "".join(
                    f"{{{ast.unparse(side)}}}" if text is None else text
                    for side, text in zip((left, right), texts, strict=True)
                )
    return None


def _is_sentence(text: str, words: int) -> bool:
    fixed = re.findall(r"(?<![\w-])[A-Za-z][\w'-]*", without_placeholders(text))
    return (
        len(fixed) >= words
        and re.search(r"[a-z]{3}", without_placeholders(text)) is not None
        and " " in text.strip()
        and not _NO_PROSE.search(text)
    )


def without_placeholders(text: str) -> str:
    """Return a message with ``{}`` for every placeholder, however deep its expression is."""
    result, depth = [], 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if not depth:
            result.append("{}" if character == "}" else character)
    return "".join(result)


def _is_part(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Say whether a literal is a part of a larger one, which is told as a whole."""
    parent = parents.get(node)
    while isinstance(parent, ast.expr | ast.FormattedValue):
        if isinstance(parent, ast.JoinedStr) or (isinstance(parent, ast.BinOp) and _literal(parent) is not None):
            return True
        parent = parents.get(parent)
    return False


def _is_docstring_or_compared(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    return isinstance(parents.get(node), ast.Expr | ast.Compare)


def _speaker(node: ast.AST, parents: dict[ast.AST, ast.AST], errors: set[str]) -> str:
    """Return what makes a literal a message: the name of the call, keyword, variable or function; empty for none."""
    child, parent = node, parents.get(node)
    while parent is not None:
        match parent:
            case ast.Call(func=func) if child is not func:
                name = func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""
                if name in errors or name in CALLS:
                    return name
                if name == "print" and any("stderr" in ast.unparse(each) for each in parent.keywords):
                    return "stderr"
                if name == "write" and "stderr" in ast.unparse(func):
                    return "stderr"
                if _speaks(name):
                    return name
            case ast.keyword(arg=str(name)) if _speaks(name):
                return name
            case ast.Assign(targets=[target]) if _speaks(ast.unparse(target)):
                return ast.unparse(target)
            case ast.AnnAssign(target=target) if _speaks(ast.unparse(target)):
                return ast.unparse(target)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                returned = isinstance(child, ast.Return) or _returns(child, node)
                return name if returned and _speaks(name) else ""
        child, parent = parent, parents.get(parent)
    return ""


def _returns(statement: ast.AST, node: ast.AST) -> bool:
    """Say whether a literal is in a return or yield within a compound statement."""
    return any(
        isinstance(each, ast.Return | ast.Yield) and any(inner is node for inner in ast.walk(each))
        for each in ast.walk(statement)
    )


def _speaks(name: str) -> bool:
    return not WORDS.isdisjoint(re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))
