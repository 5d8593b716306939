import pytest

from vramtop.estimator.model.find_config import find_built_in
from vramtop.tui.job.form.model_choices import model_choices, model_names, search_models

CHOICES = model_choices(recent=("acme/rocket-9b", "Llama-3.1-70B"), cached=("acme/rocket-9b", "acme/other-1b"))


@pytest.mark.parametrize("typed", ["llama3 8b", "8b llama-3.1", "llama38b", "LLAMA-3.1-8", "meta llama 8b"])
def test_a_model_is_found_by_parts_of_its_name_in_any_order(typed):
    assert search_models(typed, CHOICES)[0].name == "Llama-3.1-8B"


def test_a_name_that_has_the_letters_only_by_chance_is_not_found():
    assert search_models("nope", CHOICES) == ()


def test_recent_models_come_first_then_those_in_the_cache_each_once():
    assert [(each.name, each.note) for each in CHOICES[:3]] == [
        ("acme/rocket-9b", "recent"),
        ("Llama-3.1-70B", "recent"),
        ("acme/other-1b", "in the cache"),
    ]
    assert len({each.name for each in CHOICES}) == len(CHOICES)
    assert search_models("", CHOICES) == CHOICES


def test_every_name_of_a_built_in_model_can_be_taken():
    assert all(find_built_in(name) for name in model_names())


def test_names_are_unique():
    assert "Llama-3.1-8B" in model_names()
    assert len(set(model_names())) == len(model_names())
