"""For a line in one's own script: ``from vramtop.monitor import report`` and ``TrainerCallback``."""

import importlib
from typing import Any

from . import publisher


def report(**facts: Any) -> None:
    """Let vramtop see this process from inside: torch's allocator counters, once a second, until it ends.

    Call it once, anywhere; calling it again adds facts. It imports no torch and makes no CUDA context.

    Args:
        facts: anything to publish besides, such as ``micro_batch=4``; values that are no JSON become text.
    """
    publisher.tell(**facts)
    publisher.start()


def step_ended() -> None:
    """Say that a training step ended, in a loop of one's own."""
    publisher.mark_step()


def trainer_callback() -> Any:
    """The class of a callback for transformers' Trainer that tells its arguments, its model and its steps.

    Raises:
        ImportError: transformers is not installed.
    """
    base = importlib.import_module("transformers.trainer_callback").TrainerCallback
    publisher.start()
    return publisher.callback_class(base)
