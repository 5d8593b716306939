"""Methods of the script's own that transformers' trainers call: overridden ones, and those of callbacks."""

import ast
from typing import Any

from ..models import Notes
from ..python import UNKNOWN, Call, Function, Instance

_OPTIMIZER_METHODS = ("create_optimizer", "create_optimizer_and_scheduler")
_CALLBACK_METHODS = ("on_init_end", "on_train_begin", "on_epoch_begin", "on_step_begin")


def follow_own_optimizer(trainer: Instance, call: Call, notes: Notes) -> None:
    """Follow ``create_optimizer`` of a trainer's class of the script; its optimizer is the one that counts."""
    for name in _OPTIMIZER_METHODS:
        function = trainer.kind.find(name)
        if not isinstance(function, Function):
            continue
        known = len(notes.optimizers)
        call.run.call_function(function, [trainer, UNKNOWN], {})
        if len(notes.optimizers) > known:
            notes.assigned["optim"] = notes.optimizers[-1].setting
        elif not calls_super(function, name):
            sentence = f"{call.run.location(function.node)}: {name} makes an optimizer that is not followed."
            notes.doubt(sentence, "optimizer", key="training.optimizer")


def follow_callbacks(callbacks: Any, model: Any, call: Call) -> None:
    """Follow the methods of callbacks that freeze parameters before or while the model trains."""
    for callback in callbacks if isinstance(callbacks, list | tuple) else ():
        if not isinstance(callback, Instance):
            continue
        for name in _CALLBACK_METHODS:
            function = callback.kind.find(name)
            if isinstance(function, Function) and "requires_grad" in ast.dump(function.node):
                call.run.call_function(function, [callback, UNKNOWN, UNKNOWN, UNKNOWN], {"model": model})


def calls_super(function: Function, name: str) -> bool:
    """Return True if a method calls the one that it overrides."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "super"
        for node in ast.walk(function.node)
    )
