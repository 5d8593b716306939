"""The history of measured runs: a JSON file of the user's, which keeps the newest runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.errors import InputError

from ..storage.user_file import UserFile, data_file

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from vramtop.estimator.learning.measurement import Measurement

    Runs = dict[str, dict[str, Any]]
    """Measurements as JSON, by the digest of their run."""

FILE_NAME = "history.json"
MAX_RUNS = 2000
_MOST_ON_CARD = 400


class History:
    """The measured runs of this user.

    Args:
        path: of the file; None: the one in the user's data folder.

    Raises:
        CannotTellError: no home is known.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or data_file(FILE_NAME)
        kind = dict[str, dict[str, Any]]
        self._file: UserFile[Runs] = UserFile(self.path, kind, dict, "your measured runs")

    def add(self, measurement: Measurement) -> str | None:
        """Keep a measurement; an earlier one of the same run is replaced, with the higher figures of both.

        Returns:
            A sentence if a damaged file was renamed.

        Raises:
            CannotTellError: the file cannot be written.
        """
        from vramtop.estimator.learning.measurement import merged
        from vramtop.estimator.learning.measurement_json import measurement_to_json

        def change(runs: Runs) -> Runs:
            earlier = _measurement(runs.get(measurement.run))
            kept = measurement if earlier is None else merged(earlier, measurement)
            known: Runs = {**runs, kept.run: measurement_to_json(kept)}
            return dict(sorted(known.items(), key=lambda item: item[1].get("time", 0.0), reverse=True)[:MAX_RUNS])

        return self._file.change(change)

    def on_card(self, names: Collection[str]) -> tuple[Measurement, ...]:
        """Return the newest measurements on one card, the newest first.

        Args:
            names: those under which NVML knows the card.

        Raises:
            CannotTellError: the file cannot be read.
        """
        return tuple(each for each in self.list() if each.card in names)[:_MOST_ON_CARD]

    def list(self, run: str = "") -> tuple[Measurement, ...]:
        """Return measurements, the newest first.

        Args:
            run: the first digits of a run's digest; empty: of all runs.

        Raises:
            CannotTellError: the file cannot be read.
        """
        known = filter(None, map(_measurement, self._file.read().values()))  # another version may have written others
        chosen = (each for each in known if each.run.startswith(run))
        return tuple(sorted(chosen, key=lambda each: each.time, reverse=True))

    def forget(self, measurements: Collection[Measurement]) -> None:
        """Remove measurements for good.

        Raises:
            CannotTellError: the file cannot be written.
        """
        forgotten = {each.run for each in measurements}
        if forgotten:
            self._file.change(lambda runs: {run: each for run, each in runs.items() if run not in forgotten})


def _measurement(data: Any) -> Measurement | None:
    from vramtop.estimator.learning.measurement_json import measurement_from_json

    try:
        return None if data is None else measurement_from_json(data)
    except InputError:
        return None
