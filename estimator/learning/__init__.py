"""Learning from measurements: what was predicted and what was seen of a run, and what that says about another job.

Lives here: the record of a measured run without paths, names or secrets, and the correction of an estimate by such
records. No files, no processes.
Callers: ``monitor.history``, which keeps the records, and the commands that correct an estimate or measure a job.
"""

from typing import TYPE_CHECKING

from ..common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .correction import corrected as corrected, uncorrected as uncorrected
    from .json_types import MeasurementJson as MeasurementJson
    from .measurement import (
        Measurement as Measurement,
        Observed as Observed,
        Predicted as Predicted,
        RunState as RunState,
        digest as digest,
        merged as merged,
    )
    from .measurement_json import (
        measurement_from_json as measurement_from_json,
        measurement_to_json as measurement_to_json,
    )
    from .private_job import allocator_words as allocator_words, release_number as release_number
    from .subject import Subject as Subject
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "correction": "corrected uncorrected",
            "json_types": "MeasurementJson",
            "measurement": "digest Measurement merged Observed Predicted RunState",
            "measurement_json": "measurement_from_json measurement_to_json",
            "private_job": "allocator_words release_number",
            "subject": "Subject",
        },
    )
