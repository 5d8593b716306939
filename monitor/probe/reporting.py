"""The probe's interface for training scripts: ``report``, ``step_ended`` and ``TrainerCallback``."""

import importlib
import sys
from typing import Any

BOOTSTRAP_PACKAGE = "_vramtop_probe"
"""Name of the probe's package in a program that ``vramtop run`` has started; a process has only one probe."""


_callback_classes: list[Any] = []
"""``TrainerCallback``, once it was asked for."""


def report(*, snapshot_on_oom: bool | str = False, **facts: Any) -> None:
    """Publish torch's allocator counters of this process for vramtop, once a second, until it ends.

    Call it once, anywhere; calling it again adds facts. It does not import torch, creates no CUDA context and never
    raises.

    Args:
        snapshot_on_oom: record the history of allocations, and write a memory snapshot for ``vramtop explain`` when
            one fails: True: into the current folder; a text: into this one. Standard error names the file.
        facts: further values to publish, such as ``micro_batch=4``; values that JSON cannot express become text.
    """
    publisher = _probe_module("publisher")
    publisher.publish_facts(**facts)
    publisher.start()
    _probe_module("optimizers").watch()
    if snapshot_on_oom:
        folder = str(snapshot_on_oom) if snapshot_on_oom is not True else None
        _probe_module("snapshots").arm(folder)


def step_ended() -> None:
    """Report that a training step ended, in a training loop without transformers' Trainer."""
    _probe_module("publisher").step_ended()


def trainer_callback() -> Any:
    """Return the class ``TrainerCallback`` for transformers' Trainer; it publishes settings, model and steps.

    Raises:
        ImportError: transformers is not installed.
    """
    base = importlib.import_module("transformers.trainer_callback").TrainerCallback
    _probe_module("publisher").start()
    if not _callback_classes:
        _callback_classes.append(_probe_module("trainer").callback_class(base))
    return _callback_classes[0]


def _probe_module(name: str) -> Any:
    """Return the module that already runs in this process, else this package's own."""
    package = BOOTSTRAP_PACKAGE if f"{BOOTSTRAP_PACKAGE}.publisher" in sys.modules else __package__
    return importlib.import_module(f"{package}.{name}")
