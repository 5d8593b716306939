import pytest

from vramtop.estimator.job.field_help import field_help, is_switch
from vramtop.estimator.job.job_file.table_fields import job_keys


def test_choices_and_defaults_are_those_of_the_job():
    checkpointing = field_help("training.activation_checkpointing")
    assert checkpointing.choices == ("none", "full", "selective")
    assert checkpointing.default_text == "none"
    assert field_help("training.sequence_length").default_text == "2048"
    assert field_help("training.compile").default_text == "no"
    assert field_help("lora.targets").default_text == "q_proj,v_proj"


def test_what_applies_while_a_key_is_absent_is_apart_from_the_sentence():
    labels = field_help("model.num_labels")
    assert labels.sentence == "Outputs of a classification head."
    assert labels.default_text == "the config's, else 2"
    assert field_help("rollout.prompt_length").default_text == "what training.loss_length leaves of a sequence"
    assert field_help("run.output_dir").default_text is None
    assert field_help("lora").default_text == "full fine-tuning"


def test_each_setting_is_explained_in_one_line_of_plain_text():
    for key in job_keys():
        sentence = field_help(key).sentence
        assert "``" not in sentence, key
        assert "\n" not in sentence, key
        if "." in key:
            assert sentence.endswith((".", "...")), key
            assert 10 < len(sentence) <= 115, key


def test_an_unknown_key_is_an_error():
    with pytest.raises(KeyError):
        field_help("training.microbatch")


def test_a_value_has_a_word_that_stands_for_it():
    assert field_help("training.micro_batch").placeholder == "N"
    assert field_help("inference.gpu_memory_utilization").placeholder == "SHARE"
    assert field_help("lora.targets").placeholder == "NAMES"
    assert field_help("run.output_dir").placeholder == "FOLDER"
    assert is_switch("training.compile")
    assert not is_switch("training.micro_batch")
