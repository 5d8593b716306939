"""One call of a script with its evaluated arguments: what libraries' functions are given."""

import ast
from dataclasses import dataclass, field
from typing import Any

from ...source import Setting
from .plain_values import plain, short_text
from .values import UNKNOWN, Scope, ScriptClass


@dataclass(slots=True)
class Call:
    """One call of a script with its evaluated arguments."""

    run: Any
    """The interpreter that follows the script."""
    node: ast.AST
    path: str
    """What is called, dotted: ``torch.optim.AdamW``; for a method its name."""
    receiver: Any
    """What a method is called on; None for a function."""
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str | int, ast.expr] = field(default_factory=dict)
    """The expressions of arguments, by position and keyword."""
    scope: Scope | None = None
    kind: ScriptClass | None = None
    """The class of the script on which a method is called that it inherits from a library."""
    unknown_table: ast.expr | None = None
    """The ``**settings`` whose contents are unknown."""

    @property
    def name(self) -> str:
        """The last part of what is called."""
        return self.path.rpartition(".")[2]

    @property
    def owner(self) -> str:
        """The last part of what it is called on."""
        return self.path.rpartition(".")[0].rpartition(".")[2]

    @property
    def where(self) -> str:
        """The script and line."""
        return str(self.run.location(self.node))

    def value(self, index: int | None, *names: str, default: Any = None) -> Any:
        """Return an argument by position or by one of its keywords."""
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        return self.args[index] if index is not None and index < len(self.args) else default

    def expression(self, index: int | None, *names: str) -> ast.expr | None:
        """Return the expression of an argument."""
        for name in (*names, index):
            if name is not None and name in self.nodes:
                return self.nodes[name]
        return None

    def setting(self, key: str | int, label: str = "") -> Setting | None:
        """Return an argument's value and where it stands; None if it is unknown.

        Args:
            key: its keyword or position.
            label: the callee's name for people; by default the name of what is called.
        """
        value = self.args[key] if isinstance(key, int) else self.kwargs[key]
        node = self.nodes.get(key)
        named = f"{key}=" if isinstance(key, str) else ""
        shown = short_text(node) if node is not None else repr(value)[:40]
        text = f"{label or self.name}({named}{shown})"
        origin = self.run.origin(node, self.scope) if node is not None else None
        value = plain(value)
        where = self.run.location(node if node is not None else self.node)
        if value is UNKNOWN:
            return None
        because = self.run.because()
        if origin is not None:
            return Setting(value=value, origin=f"{origin.origin} ({where}: {text}{because})")
        return Setting(value=value, origin=f"{where}: {text}{because}")
