"""The tables of frameworks, optimizers and strategies name only what exists, and the job file takes their rows."""

import re
from pathlib import Path
from typing import get_args

import pytest

from vramtop import estimator
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job_file.changes import job_from_mapping
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


def test_another_value_is_refused_with_the_nearest_row() -> None:
    with pytest.raises(InputError, match="did you mean 'adamw-fused'"):
        job_from_mapping({"training": {"optimizer": "adam-fused"}}, where="job.toml")


def test_alternatives_are_rows_themselves() -> None:
    named = {name for row in OPTIMIZERS.values() for name in (row.same_result, row.smaller_states, row.unpaged)}
    assert named - {None} <= OPTIMIZERS.keys()


def test_a_library_name_maps_to_one_optimizer() -> None:
    for names in ([row.trainer_names for row in OPTIMIZERS.values()], [row.class_names for row in OPTIMIZERS.values()]):
        every = [name for each in names for name in each]
        assert len(every) == len(set(every))
        assert all(name.islower() or "." in name for name in every)


@pytest.mark.parametrize("package", ["formula", "model", "trace"])
def test_no_formula_compares_the_name_of_a_row(package: str) -> None:
    """Otherwise a new row would need more than one change."""
    compared = re.compile(r"(framework|optimizer|strategy|precision)(\.name)? *(==|!=|in|not in) *[\"(]")
    folder = Path(estimator.__file__).parent / package
    lines = [line for file in folder.rglob("*.py") for line in file.read_text().splitlines()]
    assert [line for line in lines if compared.search(line)] == []


def test_the_documentation_lists_every_optimizer_and_option() -> None:
    text = (Path(__file__).parents[4] / "docs" / "reference" / "optimizers.md").read_text()
    assert not [name for name in OPTIMIZERS if f"`{name}`" not in text], "run `make reference`"
    rows = re.findall(r"^(?:\| .*? \||- .*?: )", text, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(.*?)`", row)}
    assert listed - OPTIMIZERS.keys() == {"module:Class"}
