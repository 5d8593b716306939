"""``vramtop models`` lists the built-in models: names that can be typed, ids, parameters and bytes of weights."""

import re

import pytest
from command_line import vramtop
from json_schemas import valid_json

from vramtop.estimator.model.find_config import built_in_models, find_built_in
from vramtop.estimator.program.diffusion_models import diffusion_models, find_diffusion_model
from vramtop.estimator.program.named_models import find_named_model, named_models


def test_every_model_is_listed_by_a_name_that_finds_it() -> None:
    code, out, err = vramtop("models")
    head, *rows = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split() == ["NAME", "PARAMETERS", "WEIGHTS", "DTYPE", "FAMILY", "ID"]
    for spelled in (names(rows), [name.replace("-", " ") for name in names(rows)]):
        found = [find_built_in(name) or find_named_model(name) or find_diffusion_model(name) for name in spelled]
        assert found == [*built_in_models(), *named_models(), *diffusion_models()]
    assert not [row for row in rows if re.split(r" {2,}", row)[1] == "0 M"]


def names(rows: list[str]) -> list[str]:
    return [row.split()[0] for row in rows]


def test_a_row_has_parameters_bytes_and_family() -> None:
    def cells(word: str) -> list[str]:
        return re.split(r" {2,}", vramtop("models", word)[1].splitlines()[1])

    name, *others = cells("llama-3.1-8b")
    assert (name, others[-1]) == ("llama-3.1-8b", "meta-llama/Llama-3.1-8B")
    assert others[:-1] == ["8.0 B", "15.0 GiB", "bfloat16", "llama"]
    assert cells("olmo-2-1b")[1:4] == ["1.5 B", "5.5 GiB", "float32"]
    assert cells("gpt-2")[1:4] == ["124 M", "0.2 GiB", "as bfloat16"]
    assert cells("gemma-3-1b")[1] == "1.0 B"


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("GPT-OSS-120", "gpt-oss-120b"),
        ("Llama 3.1 405B", "llama-3.1-405b"),
        ("distill-llama-8b", "deepseek-r1-distill-llama-8b"),
        ("OLMo-2-0425", "olmo-2-1b"),
    ],
    ids=["upper case", "words", "another name", "id"],
)
def test_a_word_chooses_by_name_id_or_another_name(word: str, name: str) -> None:
    assert [row.split()[0] for row in vramtop("models", word)[1].splitlines()[1:]] == [name]


def test_json_follows_its_schema() -> None:
    found = valid_json("models", vramtop("models", "--json")[1])["models"]
    assert len(found) == len(built_in_models()) + len(named_models()) + len(diffusion_models())
    model = next(each for each in found if each["id"] == "allenai/OLMo-2-0425-1B")
    assert (model["dtype"], model["weight_bytes"]) == ("float32", 4 * model["parameters"])
    model = next(each for each in found if each["id"] == "openai-community/gpt2")
    assert (model["dtype"], model["weight_bytes"]) == (None, 2 * 124_439_808)


def test_a_word_in_no_name_is_an_error_with_the_nearest() -> None:
    assert vramtop("models", "lama-3.1-8c") == (
        *(2, ""),
        "vramtop: no known model has 'lama-3.1-8c' in its name; did you mean llama-3.1-8b, llama-3-8b, llama-3.2-1b?\n",
    )
    code, out, err = vramtop("models", "zzzz", "--json")
    assert (code, out) == (2, "")
    assert err == "vramtop: no known model has 'zzzz' in its name; vramtop models lists all\n"
