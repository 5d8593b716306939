"""Corrects budgets by the user's measured runs: reads the history, and hands the runs to the pure correction."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.errors import CannotTellError, VramtopError

from .history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.learning.measurement import Measurement


_FRESH_SECONDS = 20.0
"""Time for which what was read of the history is used again: a run becomes a measurement every few minutes."""


class Corrections(msgspec.Struct):
    """Corrects budgets. Safe to use from several threads; reads a file, so never use it on the UI thread.

    Args:
        history: opens the history; may raise CannotTellError.
        notify: called with a sentence, once, if the history cannot be read; estimates stay uncorrected.
        clock: Unix seconds.
    """

    history: Callable[[], History] = History
    notify: Callable[[str], object] = lambda _: None
    clock: Callable[[], float] = time.time
    _read: dict[str, tuple[float, tuple[Measurement, ...]]] = msgspec.field(default_factory=dict)
    _failed: bool = False
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def corrected(
        self,
        budget: Budget,
        *,
        card: str | None = None,
        here: bool = True,
        versions: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Budget:
        """Return the budget corrected by measured runs on the same card; as it is where there are none of it.

        Args:
            budget: of a job.
            card: name of the GPU that it is for, as NVML or the catalogue gives it; None: unknown; no run counts.
            here: the job would run, or runs, on this machine.
            versions: versions of libraries in the run; None: what the job states.
            environ: environment of the run, with the Hugging Face cache and the allocator's settings; None: it is no
                run yet, and would start in this one. A run is never corrected by what was seen of itself: of those
                measured, only runs that have ended count for it.
        """
        from vramtop.estimator.common.allocator_variables import allocator_settings
        from vramtop.estimator.learning.correction import corrected
        from vramtop.estimator.learning.subject import Subject
        from vramtop.estimator.model.find_config import resolve_model

        from .new_measurement import machine_digest

        runs = self._on_card(card) if card else ()
        if environ is not None:
            runs = tuple(each for each in runs if each.state != "steady")
        if not runs:
            return budget
        environ = os.environ if environ is None else environ
        try:
            config = resolve_model(budget.job.model, environ=environ).config
        except VramtopError:
            config = {}
        _, allocator = allocator_settings(environ) or (None, None)
        subject = Subject.of_job(
            budget.job,
            config,
            parameters=budget.model.parameters,
            card=card,
            machine=machine_digest() if here else "",
            versions=versions,
            allocator=allocator or "",
        )
        return corrected(budget, subject, runs)

    def forget_what_was_read(self) -> None:
        """Read the history again with the next budget."""
        with self._lock:
            self._read.clear()

    def _on_card(self, card: str) -> tuple[Measurement, ...]:
        with self._lock:
            now = self.clock()
            known = self._read.get(card)
            if known is not None and now - known[0] < _FRESH_SECONDS:
                return known[1]
            try:
                history = self.history()
            except CannotTellError:  # no home is known, so nothing is kept
                return ()
            try:
                found = history.on_card(_names(card))
            except CannotTellError as error:
                found = ()
                if not self._failed:
                    self._failed = True
                    self.notify(error.message)
            self._read[card] = now, found
            return found


def _names(card: str) -> tuple[str, ...]:
    """Return the names under which NVML may know a card."""
    from vramtop.estimator.job.gpu_catalogue import find_gpu, match_nvml_name

    found = match_nvml_name(card)
    if found is None:
        try:
            found = find_gpu(card)
        except VramtopError:
            return (card,)
    return (card, *found.nvml_names)
