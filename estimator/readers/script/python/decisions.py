"""Conditions of a script that cannot be decided, and the answers that one reading of it takes for granted."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .plain_values import short_text
from .values import PLAIN, Scope

_QUIET_CALLS = {
    *("print", "log", "info", "debug", "warning", "warn", "error", "write", "set_description", "set_postfix"),
    *("save_pretrained", "save_model", "save_state", "push_to_hub", "save", "makedirs", "mkdir", "barrier"),
    *("wait_for_everyone", "set_seed", "manual_seed", "seed", "update", "flush", "close", "append", "sleep"),
    *("init_trackers", "end_training", "finish", "item", "format", "join", "time", "set_verbosity", "login"),
    *("set_verbosity_info", "enable_default_handler", "enable_explicit_format", "log_metrics", "save_metrics"),
    *("evaluate", "add_scalar", "zero_grad", "clip_grad_norm_", "set_epoch", "isfile", "isdir", "exists", "exp"),
    *("len", "float", "int", "str", "max", "min", "dump", "dumps"),
}
"""Functions whose calls change nothing that memory depends on."""
_MATTERS = re.compile(
    r"(?i)lora|peft|freez|quant|from_(pretrained|config)|requires_grad|optim|dtype|bfloat16|float16|half|checkpointing"
    r"|batch|length|seq_len|block_size|loader|ema|teacher|student|trainer|model|config|args|device|fsdp|ddp|deepspeed"
)
"""Names in branches that may decide about memory."""


_SAVES = re.compile(
    r"(?i)get_peft_model|LoraConfig|prepare_model_for_\w+bit\w*|BitsAndBytesConfig|load_in_[48]bit|quantization_config"
    r"|add_adapter|gradient_checkpointing_enable"
)
"""Calls and arguments that lower the memory by much: without a known answer, the job is taken to do without."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """A condition that only the running script can decide."""

    key: str
    """Its text, without ``not``: the same text means the same condition."""
    where: str
    """Script and line, for people."""
    text: str
    answer: bool
    """The answer that was taken for granted."""
    matters: int
    """0: nothing that memory depends on; 1: it names models, optimizers, settings; 2: it lowers the memory by much."""


@dataclass(slots=True)
class Decisions:
    """The answers of one reading."""

    given: dict[str, bool] = field(default_factory=dict)
    asked: dict[str, Undecided] = field(default_factory=dict)
    texts: dict[int, tuple[str, str, int]] = field(default_factory=dict)
    """Key and text of each condition by the identity of its node, and how it matters; the readings share it."""
    passed: set[str] = field(default_factory=set)
    """Places at which errors are taken not to be raised: the script would not train; the readings share them."""

    def decide(self, test: ast.expr, where: str, *, usual: bool, branches: list[ast.stmt] | None = None) -> bool:
        """Return the answer for a condition that cannot be decided.

        Args:
            test: the condition.
            where: script and line.
            usual: the answer if none is given.
            branches: the statements that it decides about; None: it decides about an expression.
        """
        inverted = False
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, inverted = test.operand, not inverted
        if id(test) not in self.texts:
            text = short_text(test)
            key = text if len(text) < 40 else f"{text}{hash(ast.dump(test))}"
            self.texts[id(test)] = key, f"{text} holds", 1 if branches is None else _matters(branches)
        key, text, matters = self.texts[id(test)]
        return self._answer(key, where, text, usual=usual is not inverted, matters=matters) is not inverted

    def fails(self, handler: ast.ExceptHandler, where: str) -> bool:
        """Return whether a ``try`` ends in one of its handlers."""
        text = f"{short_text(handler.type) or 'an exception'} is raised"
        return self._answer(f"{where} except", where, text, usual=False, matters=_matters(handler.body))

    def _answer(self, key: str, where: str, text: str, *, usual: bool, matters: int) -> bool:
        before = self.asked.get(key)
        answer = before.answer if before is not None else self.given.get(key, usual)
        if (before is None and len(self.asked) < 200) or (before is not None and matters > before.matters):
            self.asked[key] = Undecided(key, where, text, answer, matters)
        return answer


def _matters(body: list[ast.stmt]) -> int:
    """Return how statements matter to memory, as ``Undecided.matters``."""
    return 2 if saves(body) else int(any(_MATTERS.search(word) for word in _words(body)))


def saves(body: list[ast.stmt]) -> bool:
    """Return True if statements attach adapters, quantize or checkpoint."""
    return any(_SAVES.fullmatch(word) for word in _words(body))


def _words(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names in statements."""
    for statement in body:
        for node in ast.walk(statement):
            word = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", None)
            if isinstance(word, str):
                yield word


def is_quiet(body: list[ast.stmt]) -> bool:
    """Return True if nothing that memory depends on can follow from statements: they print, log and save."""
    return all(map(_is_quiet_statement, body))


def ends(body: list[ast.stmt]) -> bool:
    """Return True if statements end what they stand in: they raise, return or exit."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        function = last.value.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return name in ("exit", "_exit", "quit")
    return isinstance(last, ast.Raise | ast.Return | ast.Continue | ast.Break)


def raises(body: list[ast.stmt]) -> bool:
    """Return True if statements end the script."""
    return ends(body) and not isinstance(body[-1], ast.Return | ast.Continue | ast.Break)


def has_succeeded(body: list[ast.stmt], scope: Scope) -> bool:
    """Return True if a body that was followed is one assignment, whose value is known."""
    (first, *more) = body
    if more or not isinstance(first, ast.Assign) or not isinstance(first.targets[0], ast.Name):
        return False
    found = scope.find(first.targets[0].id)
    return found is not None and isinstance(found.names[first.targets[0].id], PLAIN)


def _is_quiet_statement(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Pass | ast.Raise | ast.Import | ast.Assert):
        return True
    if isinstance(statement, ast.Expr):
        return all(_is_quiet_call(node) for node in ast.walk(statement) if isinstance(node, ast.Call))
    if isinstance(statement, ast.If):
        return is_quiet(statement.body) and is_quiet(statement.orelse)
    return False


def _is_quiet_call(node: ast.Call) -> bool:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in _QUIET_CALLS or name.endswith("_print") or name.startswith(("print_", "log_"))


def is_interruption(handler: ast.ExceptHandler) -> bool:
    """Return True for a handler of what no plain run meets."""
    return handler.type is not None and any(
        word in ast.unparse(handler.type) for word in ("KeyboardInterrupt", "SystemExit", "OutOfMemory", "Stop")
    )


def is_periodic(test: ast.expr) -> bool:
    """Return True for a condition that holds every few rounds of a loop: ``step % 4 == 0``."""
    return any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) for node in ast.walk(test))
