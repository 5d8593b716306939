"""Budgets are corrected by the history of this machine and card; a history that cannot be read changes nothing."""

from pathlib import Path

import pytest
from simulated_machine import NOW, Machine, budget_of, job

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.records import replace
from vramtop.monitor.history import new_measurement
from vramtop.monitor.history.corrections import Corrections
from vramtop.monitor.history.history import History

TARGET = job(micro_batch=8)
CARD = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setattr(new_measurement, "machine_digest", lambda: "here")
    monkeypatch.setattr(new_measurement, "vramtop_version", lambda: "1")
    machine = Machine(tokens=0.2, slack=0.03)
    kept = History(tmp_path / "history.json")
    for size in (1, 8, 8):
        kept.add(machine.run(job(micro_batch=size)))
    return kept


def corrections(history: History) -> Corrections:
    return Corrections(history=lambda: history, clock=lambda: NOW)


def test_a_budget_is_corrected_by_what_was_measured_here(history: History) -> None:
    before = budget_of(TARGET)
    for place in ({"card": CARD}, {"card": "h100-80gb", "here": False}):
        found = corrections(history).corrected(before, environ={}, **place)  # type: ignore[arg-type]
        assert found.peak.device_bytes > 1.1 * before.peak.device_bytes, place
        assert found.learned.runs == 2
    assert "on this kind of card" in (
        learned.sentence
        if (learned := corrections(history).corrected(before, card=CARD, here=False, environ={}).learned)
        else ""
    )


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("card", ["rtx-4090", "NVIDIA A100-SXM4-80GB", None])
def test_another_card_and_one_without_a_name_are_not(card: str | None, here: bool, history: History) -> None:
    assert corrections(history).corrected(budget_of(TARGET), card=card, here=here, environ={}).learned is None


def test_a_corrected_budget_is_not_corrected_again(history: History) -> None:
    once = corrections(history).corrected(budget_of(TARGET), card=CARD, environ={})
    assert corrections(history).corrected(once, card=CARD, environ={}) is once


def test_the_allocators_settings_of_the_run_count(history: History) -> None:
    other = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert corrections(history).corrected(budget_of(TARGET), card=CARD, environ={}).learned is not None
    assert corrections(history).corrected(budget_of(TARGET), card=CARD, environ=other).learned is None


def test_a_history_that_cannot_be_read_is_said_once_and_changes_nothing(tmp_path: Path) -> None:
    said: list[str] = []

    def nowhere() -> History:
        raise CannotTellError("no home is known")

    found = Corrections(history=nowhere, notify=said.append, clock=lambda: NOW)
    assert found.corrected(budget_of(TARGET), card=CARD) is budget_of(TARGET)
    assert said == []  # nothing is kept there
    damaged = tmp_path / "history.json"
    damaged.write_bytes(b"no database")
    found = Corrections(history=lambda: History(damaged), notify=said.append, clock=lambda: NOW)
    for card in (CARD, None):
        assert found.corrected(budget_of(TARGET), card=card) is budget_of(TARGET)
    (sentence,) = said
    assert "is damaged" in sentence
    assert damaged.read_bytes() == b"no database"


def test_a_run_is_not_corrected_by_what_was_seen_of_itself(history: History) -> None:
    small = job(micro_batch=1)
    run = next(each for each in history.list() if each.job.training.micro_batch == 1)
    history.add(replace(run, state="steady", run="it", time=NOW))
    running = corrections(history).corrected(budget_of(small), card=CARD, environ={})
    planned = corrections(history).corrected(budget_of(small), card=CARD)
    assert (running.learned.last, planned.learned.last) == (run.time, NOW)
