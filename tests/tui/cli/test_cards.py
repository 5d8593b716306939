"""Estimates for other cards keep what a more accurate method has beyond the closed form, and the cards' differences."""

from vramtop.estimator.advice.bounded_search import shifted
from vramtop.estimator.common.records import replace
from vramtop.estimator.estimation import quick_estimator
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.tui.cli.fitting.cards import beyond_formula, estimator_on_card, find_cards

JOB = Job(name="a", model=ModelSpec(id="meta-llama/Llama-3.2-1B"))
MIB = 2**20


def test_a_traced_budget_is_shifted_for_each_card_by_the_same_bytes() -> None:
    traced = replace(shifted(quick_estimator(JOB)(JOB), 700 * MIB), method="traced")
    beyond = beyond_formula(JOB, traced)
    assert beyond == 700 * MIB
    sizes = {}
    for name in ("a100-80gb", "h100-80gb"):
        gpu = find_gpu(name)
        estimate = estimator_on_card(JOB, gpu, beyond)
        assert estimate is not None
        sizes[name] = estimate(JOB).peak.device_bytes
        assert sizes[name] == quick_estimator(JOB, gpu=gpu)(JOB).peak.device_bytes + 700 * MIB
    assert sizes["a100-80gb"] != sizes["h100-80gb"]  # context and cuBLAS' workspaces


def test_the_cards_of_a_traced_budget_need_what_they_need_each() -> None:
    traced = replace(quick_estimator(JOB, gpu=None)(JOB), method="traced")
    needs = {card.gpu: card.device_bytes for card in find_cards(JOB, traced) if card.gpus == 1}
    assert needs["a100-80gb"] < needs["h100-80gb"]
