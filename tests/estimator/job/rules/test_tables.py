"""The tables of frameworks, optimizers and strategies name only what exists, and the job file takes their rows."""

from typing import get_args

from vramtop.estimator.job.job_file.table_fields import choices_of
from vramtop.estimator.job.rules.frameworks import FRAMEWORKS
from vramtop.estimator.job.rules.optimizers.table import OPTIMIZERS
from vramtop.estimator.job.rules.strategies import PRECISIONS, STRATEGIES
from vramtop.estimator.job.settings import FrameworkName, OptimizerName, PrecisionName, StrategyName


def test_a_job_file_takes_the_rows_of_the_tables() -> None:
    assert get_args(FrameworkName) == tuple(FRAMEWORKS)
    assert choices_of(OptimizerName) == ("auto", *OPTIMIZERS)
    assert get_args(PrecisionName) == ("auto", *PRECISIONS)
    assert get_args(StrategyName) == tuple(STRATEGIES)


def test_alternatives_are_rows_themselves() -> None:
    named = {name for row in OPTIMIZERS.values() for name in (row.same_result, row.smaller_states, row.unpaged)}
    assert named - {None} <= OPTIMIZERS.keys()


def test_a_library_name_maps_to_one_optimizer() -> None:
    for names in ([row.trainer_names for row in OPTIMIZERS.values()], [row.class_names for row in OPTIMIZERS.values()]):
        every = [name for each in names for name in each]
        assert len(every) == len(set(every))
        assert all(name.islower() or "." in name for name in every)
