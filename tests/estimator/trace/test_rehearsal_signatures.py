"""Signatures of what stands in for torch's functions in a rehearsal."""

import inspect

import pytest

pytest.importorskip("torch")

from vramtop.estimator.worker.rehearsal.fake_gpu import Card, FakeGpus
from vramtop.estimator.worker.rehearsal.stand_ins import stand_ins


def signature(function: object) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def test_stand_ins_take_what_torchs_functions_take() -> None:
    card = Card(name="a GPU", total_memory=1 << 36, context=0, workspace=0, capability=(9, 0))
    compared = 0
    for owner, name, stand_in in stand_ins(FakeGpus(1, None, card)):
        theirs, ours = signature(getattr(owner, name)), signature(stand_in)
        if theirs is None or ours is None or (inspect.isclass(stand_in) and name not in ("Stream", "Event")):
            continue
        parameters = list(theirs.parameters.values())
        by_place = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        only_by_place = [each for each in by_place if each.kind is each.POSITIONAL_ONLY or each.name == "self"]
        ours.bind(*by_place, **dict.fromkeys(by_name))
        ours.bind(*only_by_place, **dict.fromkeys([each.name for each in by_place[len(only_by_place) :]] + by_name))
        compared += 1
    assert compared > 100
