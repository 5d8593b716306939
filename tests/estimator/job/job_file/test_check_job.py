"""Jobs that are made in Python: wrong values end in a sentence, as those of a job file."""

import msgspec
import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec, Training

LLAMA = ModelSpec(id="llama-3.1-8b")


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        (Training(precision="pure-bf16"), r"training\.precision = 'pure-bf16' is not one of .*bf16.*did you mean"),
        (Training(micro_batch=0), r"training\.micro_batch = 0 is not a whole number of at least 1"),
        (Training(optimizer="adamx"), r"training\.optimizer = 'adamx' .*did you mean 'adam"),
    ],
)
def test_a_wrong_value_is_named(training: Training, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        estimate(Job(model=LLAMA, training=training))


def test_a_right_job_is_estimated() -> None:
    """Lists and tables of values are as valid in Python as in a file."""
    training = Training(optimizer="galore-adamw", optimizer_options={"rank": 64}, trainable=["!embed*"])
    job = Job(model=LLAMA, training=training)
    assert estimate(msgspec.structs.replace(job, name="a")).peak.device_bytes == estimate(job).peak.device_bytes
