"""Estimates for other cards keep what a more accurate method has beyond the closed form, and the cards' differences."""

from vramtop.estimator.common.records import replace
from vramtop.estimator.estimation import quick_estimator
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.tui.cli.fitting.cards import find_cards

JOB = Job(name="a", model=ModelSpec(id="meta-llama/Llama-3.2-1B"))


def test_the_cards_of_a_traced_budget_need_what_they_need_each() -> None:
    traced = replace(quick_estimator(JOB, gpu=None)(JOB), method="traced")
    needs = {card.gpu: card.device_bytes for card in find_cards(JOB, traced) if card.gpus == 1}
    assert needs["a100-80gb"] < needs["h100-80gb"]
