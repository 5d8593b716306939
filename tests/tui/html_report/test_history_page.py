"""The report on measured runs: predicted beside seen, and what the other runs would have corrected."""

from dataclasses import replace

import pytest
from simulated_machine import Machine, job

from vramtop.estimator.learning.measurement import Measurement
from vramtop.monitor.history.history import corrected_by_others
from vramtop.tui.html_report.page import history_page, history_plot


@pytest.fixture
def runs() -> list[Measurement]:
    """Six runs on a machine that takes a fifth more per token than is predicted."""
    machine = Machine(tokens=0.2)
    return [replace(machine.run(job(micro_batch=size)), run=f"abcdef{size}") for size in (1, 2, 3, 4, 6, 8)]


def test_each_run_has_its_prediction_beside_what_was_seen(runs: list[Measurement]) -> None:
    html = history_page(runs, "history", corrected={}, made_by="vramtop 1")
    for run in runs:
        seen, predicted = run.observed.device_bytes, run.predicted[-1].device_bytes
        assert seen is not None
        assert f"{100 * (seen - predicted) / predicted:+.1f} %" in html
        assert f"<code>{run.run[:8]}</code>" in html


def test_a_run_outside_of_its_range_stands_out(runs: list[Measurement]) -> None:
    far = replace(runs[0], observed=replace(runs[0].observed, device_bytes=70 * 2**30))
    labels = [part.label for bar in history_plot([far]).bars for part in bar.segments]
    assert "seen, outside the range" in labels


def test_the_other_runs_correct_each_but_no_run_corrects_itself(runs: list[Measurement]) -> None:
    corrected = corrected_by_others(runs)
    assert len(corrected) == len(runs)
    for run in runs:
        budget, seen = corrected[run.run], run.observed.device_bytes
        assert budget.learned is not None
        assert seen is not None
        before = abs(budget.learned.uncorrected.device_bytes - seen)
        assert abs(budget.peak.device_bytes - seen) < before
    assert "Correction" in history_page(runs, "history", corrected=corrected, made_by="vramtop 1")
    (alone,) = corrected_by_others(runs[:1]).values()
    assert alone.learned is None


def test_a_history_without_runs_has_a_report() -> None:
    assert "no runs have been measured yet" in history_page([], "history", corrected={}, made_by="vramtop 1")


def test_names_of_models_are_text(runs: list[Measurement]) -> None:
    html = history_page([replace(runs[0], model="<b>x</b>")], "<i>", corrected={}, made_by="vramtop 1")
    assert "<b>" not in html
    assert "<i>" not in html
