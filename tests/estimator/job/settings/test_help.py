"""The meaning of each setting, as command-line help and forms show it."""

import pytest

from vramtop.estimator.job import field_help, job_keys

KEYS = [key for key in job_keys() if "." in key]


@pytest.mark.parametrize("key", KEYS)
def test_each_setting_says_in_one_plain_sentence_what_it_means(key: str) -> None:
    sentence = field_help(key).sentence
    assert sentence.endswith((".", "..."))
    assert "`" not in sentence
    assert "\n" not in sentence
    assert len(sentence) <= 120


def test_the_meaning_has_choices_default_and_a_word_for_the_value() -> None:
    precision = field_help("training.precision")
    assert precision.choices == ("fp32", "fp16-mixed", "bf16-mixed", "bf16", "fp16")
    assert precision.default == "bf16-mixed"
    assert field_help("training.micro_batch").placeholder == "N"
    assert field_help("training.compile").is_flag
    assert field_help("training.loss_length").default is None
    assert field_help("lora.targets").default == "q_proj,v_proj"
    assert "Liger-Kernel" in field_help("training.loss").details


def test_a_key_that_does_not_exist_has_no_meaning() -> None:
    with pytest.raises(KeyError):
        field_help("training.micro_btach")
