"""What the GPUs are holding: snapshots, recordings, attaching to processes, comparing with budgets.

For a training script of one's own::

    from vramtop.monitor import report
    report()                                     # vramtop sees torch's own counters from here on

    from vramtop.monitor import TrainerCallback
    trainer.add_callback(TrainerCallback())      # and the Trainer's arguments, its model and its steps
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .probe.reporting import report as report
    from .probe.reporting import step_ended as step_ended


def __getattr__(name: str) -> Any:
    """Loaded when asked for: the monitor itself needs none of it."""
    if name in ("report", "step_ended", "TrainerCallback"):
        from .probe import reporting

        return reporting.trainer_callback() if name == "TrainerCallback" else getattr(reporting, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
