"""``explain`` finds the true cause of a divergence often enough, on a sample of the jobs of ``explanations.py``."""

import explanations
import pytest
from explanation_jobs import JOBS
from explanations import Setup, Trial, trials


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    monkeypatch.setattr(explanations, "JOBS", JOBS[1::8])
    monkeypatch.setattr(explanations, "REPEATS", 1)
    return list(trials(Setup()))


@pytest.mark.slow
def test_the_true_cause_is_found(simulated: list[Trial]) -> None:
    visible = [trial for trial in simulated if trial.truth and trial.visible]
    assert len(visible) > 20
    ranks = [trial.rank or 99 for trial in visible]
    assert sum(rank == 1 for rank in ranks) >= 0.4 * len(visible)
    assert sum(rank <= 3 for rank in ranks) >= 0.75 * len(visible)


@pytest.mark.slow
def test_memory_within_the_range_is_not_explained(simulated: list[Trial]) -> None:
    hidden = [trial for trial in simulated if not trial.visible]
    assert hidden
    assert not any(trial.found for trial in hidden)
