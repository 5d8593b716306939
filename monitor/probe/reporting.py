"""For a line in one's own script: ``from vramtop.monitor import report`` and ``TrainerCallback``."""

import importlib
import sys
from typing import Any

BOOTSTRAP_PACKAGE = "_vramtop_probe"
"""The package's name in a program that ``vramtop run`` has started: a process has one probe."""


def report(**facts: Any) -> None:
    """Let vramtop see this process from inside: torch's allocator counters, once a second, until it ends.

    Call it once, anywhere; calling it again adds facts. It imports no torch, makes no CUDA context and never raises.

    Args:
        facts: anything to publish besides, such as ``micro_batch=4``; values that are no JSON become text.
    """
    publisher = _running("publisher")
    publisher.publish_facts(**facts)
    publisher.start()


def step_ended() -> None:
    """Say that a training step ended, in a loop of one's own."""
    _running("publisher").step_ended()


def trainer_callback() -> Any:
    """The class of a callback for transformers' Trainer that tells its arguments, its model and its steps.

    Raises:
        ImportError: transformers is not installed.
    """
    base = importlib.import_module("transformers.trainer_callback").TrainerCallback
    _running("publisher").start()
    return _running("trainer").callback_class(base)


def _running(name: str) -> Any:
    """The module that is at work in this process already, else this package's own."""
    package = BOOTSTRAP_PACKAGE if f"{BOOTSTRAP_PACKAGE}.publisher" in sys.modules else __package__
    return importlib.import_module(f"{package}.{name}")
