"""Corrects budgets by the user's measured runs: reads the history, and hands what is near to the pure correction."""

from __future__ import annotations

import functools
import os
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from vramtop.estimator.common import CannotTellError, VramtopError

from .history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.learning import Measurement, Predicted

_MOST_PREDICTED = 32
"""Runs whose jobs are estimated again after an update of vramtop, the newest ones: each takes some milliseconds."""
_FRESH_SECONDS = 20.0
"""Time for which what was read of the history is used again: a run becomes a measurement every few minutes."""


class NearRuns(Protocol):
    """Whatever has measured runs."""

    def near(self, *, cards: Collection[str], machine: str) -> tuple[Measurement, ...]:
        """Return the runs on these cards or on this machine, the newest first."""


@dataclass(slots=True)
class Corrections:
    """Corrects budgets. Safe to use from several threads; reads a file, so never use it on the UI thread.

    Args:
        history: opens the history; may raise CannotTellError.
        notify: called with a sentence, once, if the history cannot be read; estimates stay uncorrected.
        clock: Unix seconds.
    """

    history: Callable[[], NearRuns] = History
    notify: Callable[[str], object] = lambda _: None
    clock: Callable[[], float] = time.time
    _read: dict[tuple[str | None, str], tuple[float, tuple[Measurement, ...]]] = field(default_factory=dict)
    _failed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def corrected(
        self,
        budget: Budget,
        *,
        card: str | None = None,
        here: bool = True,
        driver: str | None = None,
        versions: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Budget:
        """Return the budget corrected by measured runs on the same card; as it is where there are none near it.

        Args:
            budget: of a job.
            card: name of the GPU that it is for, as NVML or the catalogue gives it; None: unknown; no run counts.
            here: the job would run, or runs, on this machine.
            driver: version of its driver; None: unknown.
            versions: versions of libraries in the run; None: what the job states.
            environ: environment of the run, with the Hugging Face cache and the allocator's settings; None: it is no
                run yet, and would start in this one. A run is never corrected by what was seen of itself: of those
                measured, only runs that have ended count for it.
        """
        from .new_measurement import machine_digest, vramtop_version

        machine = machine_digest() if here else ""
        near = self._near(card, machine)
        if environ is not None:
            near = tuple(each for each in near if each.state != "steady")
        if not near:
            return budget
        from vramtop.estimator.learning import Subject, corrected
        from vramtop.estimator.learning.private_job import private_job
        from vramtop.estimator.model import resolve_model
        from vramtop.estimator.trace import allocator_settings

        environ = os.environ if environ is None else environ
        try:
            config = resolve_model(budget.job.model, environ=environ).config
        except VramtopError:
            config = {}
        _, allocator = allocator_settings(environ) or (None, None)
        subject = Subject.of_job(
            private_job(budget.job, config, parameters=budget.model.parameters),
            card=card,
            machine=machine,
            driver=driver,
            versions=versions,
            allocator=allocator or "",
        )
        return corrected(budget, subject, near, now=self.clock(), version=vramtop_version())

    def forget_what_was_read(self) -> None:
        """Read the history again with the next budget."""
        with self._lock:
            self._read.clear()

    def _near(self, card: str | None, machine: str) -> tuple[Measurement, ...]:
        with self._lock:
            key, now = (card, machine), self.clock()
            known = self._read.get(key)
            if known is not None and now - known[0] < _FRESH_SECONDS:
                return known[1]
            try:
                history = self.history()
            except CannotTellError:  # no home is known, so nothing is kept
                return ()
            try:
                names = _names(card)
                near = tuple(each for each in history.near(cards=names, machine=machine) if each.card in names)
                found = (*map(_predicted_now, near[:_MOST_PREDICTED]), *near[_MOST_PREDICTED:])
            except CannotTellError as error:
                found = ()
                if not self._failed:
                    self._failed = True
                    self.notify(error.message)
            self._read[key] = now, found
            return found


@functools.lru_cache(maxsize=_MOST_PREDICTED)
def _predictions(job: bytes, card: str | None, version: str) -> tuple[Predicted, ...]:
    """Return what this version predicts of a kept job by the closed form; nothing if it cannot."""
    import msgspec

    from vramtop.estimator.estimation import estimate
    from vramtop.estimator.job import Job, match_nvml_name
    from vramtop.estimator.learning import Predicted

    try:
        gpu = match_nvml_name(card) if card else None
        return (Predicted.of(estimate(msgspec.json.decode(job, type=Job), gpu=gpu), version),)
    except VramtopError:
        return ()


def _predicted_now(measurement: Measurement) -> Measurement:
    """Return a measurement with what this version of vramtop predicts: errors of another one's rules are not its own.

    A job of which names were removed cannot be estimated again, nor can a step be traced again.
    """
    import msgspec

    from .new_measurement import vramtop_version

    version = vramtop_version()
    own = [each for each in measurement.predicted if each.version == version]
    if own or not measurement.is_complete or measurement.hidden or measurement.job.model.config is None:
        return measurement
    again = _predictions(msgspec.json.encode(measurement.job), measurement.card, version)
    return replace(measurement, predicted=again) if again else measurement


def _names(card: str | None) -> tuple[str, ...]:
    """Return the names under which NVML may know a card."""
    if card is None:
        return ()
    from vramtop.estimator.job import find_gpu, match_nvml_name

    found = match_nvml_name(card)
    if found is None:
        try:
            found = find_gpu(card)
        except VramtopError:
            return (card,)
    return (card, *found.nvml_names)
