import pytest

from vramtop.estimator.errors import InputError
from vramtop.estimator.job import Job, Lora, ModelSpec, Parallel, Training
from vramtop.estimator.jobfile import job_keys
from vramtop.tui.job_fields import (
    FULL,
    LORA,
    QLORA,
    JobField,
    build_job,
    field_value,
    job_fields,
    model_names,
    parse_text,
    shown_fields,
    value_text,
)

JOBS = [
    Job(),
    Job(name="named", model=ModelSpec(id="gpt2", attention="eager"), training=Training(micro_batch=4, compile=True)),
    Job(lora=Lora(rank=8, targets="all-linear")),
    Job(lora=Lora(targets=["q_proj"], quantization="int8"), parallel=Parallel(strategy="fsdp2", data_shard=8)),
    Job(model=ModelSpec(config={"model_type": "llama"})),
]


def field(key: str) -> JobField:
    return next(found for found in job_fields() if found.key == key)


def test_every_key_of_the_job_file_has_a_field_but_those_that_fill_no_line():
    without = set(job_keys()) - {found.key for found in job_fields()}
    assert {key for key in without if not key.startswith(("software.", "inference.", "run.", "unsure."))} == {
        "name",
        "model.config",
        "model.code_folder",
        "parallel.tensor_plan",
        "target.gpu",
    }


@pytest.mark.parametrize("job", JOBS)
def test_a_form_left_alone_gives_the_job_back(job):
    values = {found.key: field_value(job, found.key) for found in job_fields()}
    assert build_job(job, values) == job


@pytest.mark.parametrize("job", JOBS)
def test_what_a_field_shows_is_read_back_as_the_same_value(job):
    for found in job_fields():
        value = field_value(job, found.key)
        if found.kind in ("number", "words", "text") and value is not None:
            assert parse_text(found, value_text(value)) == value


@pytest.mark.parametrize(("tuning", "quantization"), [(FULL, None), (LORA, "none"), (QLORA, "nf4")])
def test_the_kind_of_fine_tuning_decides_about_adapters(tuning, quantization):
    values = {found.key: field_value(Job(), found.key) for found in job_fields()} | {"lora": tuning}
    job = build_job(Job(), values)
    assert (job.lora.quantization if job.lora else None) == quantization
    assert field_value(job, "lora") == tuning


def test_fields_that_mean_nothing_are_not_shown():
    assert "lora.rank" not in shown_fields(FULL, job_fields())
    assert "lora.rank" in shown_fields(LORA, job_fields())
    assert "lora.quantization" not in shown_fields(LORA, job_fields())
    assert "lora.quantization" in shown_fields(QLORA, job_fields())


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "", "9" * 5000])
def test_wrong_numbers_are_one_sentence_with_the_field_and_the_value(text):
    with pytest.raises(InputError, match="micro-batch must be a whole number"):
        parse_text(field("training.micro_batch"), text)


@pytest.mark.parametrize(("text", "number"), [("8", 8), (" 16 ", 16), ("1_024", 1024), ("131,072", 131072)])
def test_numbers_are_read_as_people_write_them(text, number):
    assert parse_text(field("training.sequence_length"), text) == number


def test_words_are_a_list_unless_they_stand_alone():
    assert parse_text(field("lora.targets"), "q_proj, v_proj") == ["q_proj", "v_proj"]
    assert parse_text(field("lora.targets"), "all-linear") == "all-linear"


def test_suggested_names_are_unique():
    assert "Llama-3.1-8B" in model_names()
    assert len(set(model_names())) == len(model_names())
