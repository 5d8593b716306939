"""Monitoring of GPU memory: snapshots, recordings, attaching to processes, comparison with budgets.

In a training script::

    from vramtop.monitor import report
    report()                                     # publishes torch's allocator counters from here on

    from vramtop.monitor import TrainerCallback
    trainer.add_callback(TrainerCallback())      # its settings and steps too
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .probe.reporting import report as report, step_ended as step_ended


def __getattr__(name: str) -> Any:
    """Import the probe's interface lazily: the monitor itself does not need it."""
    if name in ("report", "step_ended", "TrainerCallback"):
        from .probe import reporting

        return reporting.trainer_callback() if name == "TrainerCallback" else getattr(reporting, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
