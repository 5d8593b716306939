"""The true cause of a divergence is found often enough, on some of the jobs that ``explanations.py`` tries."""

import explanations
import pytest
from explanation_jobs import JOBS
from explanations import Setup, Trial, trials


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    monkeypatch.setattr(explanations, "JOBS", JOBS[1::8])
    monkeypatch.setattr(explanations, "REPEATS", 1)
    return list(trials(Setup()))


def test_the_true_cause_is_found(tried: list[Trial]) -> None:
    asked = [trial for trial in tried if trial.truth and trial.visible]
    assert len(asked) > 20
    ranks = [trial.rank or 99 for trial in asked]
    assert sum(rank == 1 for rank in ranks) >= 0.4 * len(asked)
    assert sum(rank <= 3 for rank in ranks) >= 0.75 * len(asked)


def test_a_job_as_predicted_is_not_explained(tried: list[Trial]) -> None:
    hidden = [trial for trial in tried if not trial.visible]
    assert hidden
    assert not any(trial.found for trial in hidden)
