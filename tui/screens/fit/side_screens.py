"""The screens that the fit check opens on its job: the training step, what-if, and preflight."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.screen import Screen

from vramtop.estimator.budget import Budget
from vramtop.estimator.job import Job
from vramtop.monitor.board.fit import DeviceCapacity

from ...background import JobEstimates
from .verdict_pane import Advice

if TYPE_CHECKING:
    from ..step import LiveStepScreen
    from ..what_if import Axis, WhatIfScreen

ChangeSettings = Callable[[dict[str, object]], object]
_NO_PLOT = "The closed form has no rule for this model, so there is no plot."


class SideScreens:
    """Opens the screens, and passes on what changes while one of them is open.

    Args:
        opener: the fit check.
        change_settings: changes settings of the job, by key.
    """

    def __init__(self, opener: Screen[None], change_settings: ChangeSettings) -> None:
        self._opener = opener
        self._change_settings = change_settings
        self._step: LiveStepScreen | None = None
        self._what_if: WhatIfScreen | None = None

    def open_step(self, budget: Budget, estimates: JobEstimates, *, gpu_bytes: int | None) -> None:
        """Open the step screen on the job."""
        from ..step import LiveStepScreen  # each screen is imported when it is opened first

        self._step = self._step or LiveStepScreen(self._opener)
        self._step.open(budget, estimates, gpu_bytes=gpu_bytes)

    def open_what_if(self, budget: Budget, advice: Advice | None) -> None:
        """Plot memory over the micro-batch or the sequence length; advice on an earlier job is awaited, not plotted."""
        from ..what_if import WhatIfScreen

        known = advice if advice is not None and advice.budget.job == budget.job else None
        if known is not None and not known.can_plot:
            self._opener.notify(_NO_PLOT, severity="warning")
            return
        self._what_if = WhatIfScreen(known.sweeps if known else (), label=budget.job.label)
        self._opener.app.push_screen(self._what_if, self._apply_value)

    def open_preflight(
        self,
        job: Job | None,
        budget: Budget | None,
        *,
        devices: tuple[DeviceCapacity, ...],
        launch: list[str] | None,
    ) -> None:
        """Open the preflight screen on the job."""
        from ..preflight import open_preflight

        open_preflight(self._opener, job, devices=devices, budget=budget, launch=launch)

    def show_budget(self, budget: Budget, estimates: JobEstimates) -> None:
        """Draw the step of this budget, if that screen is open."""
        if self._step is not None:
            self._step.update(budget, estimates)

    def show_not_refined(self, reason: str) -> None:
        """Say on the step screen why the step is not traced."""
        if self._step is not None:
            self._step.show_not_refined(reason)

    def show_advice(self, advice: Advice) -> None:
        """Plot the new sweeps, if the what-if screen is open."""
        if self._what_if is None:
            return
        if advice.can_plot:
            self._what_if.show_sweeps(advice.sweeps)
        elif self._what_if.is_waiting:
            self._what_if.dismiss(None)
            self._opener.notify(_NO_PLOT, severity="warning")

    def _apply_value(self, chosen: "tuple[Axis, int] | None") -> None:
        self._what_if = None
        if chosen is not None:
            self._change_settings({chosen[0]: chosen[1]})
