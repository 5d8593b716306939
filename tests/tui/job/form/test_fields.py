import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job, Lora, ModelSpec, Parallel, Training
from vramtop.tui.job.form.fields import (
    FULL,
    LORA,
    QLORA,
    JobField,
    build_job,
    field_value,
    job_fields,
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


@pytest.mark.parametrize("job", JOBS)
def test_an_unchanged_form_returns_the_same_job(job):
    values = {found.key: field_value(job, found.key) for found in job_fields()}
    assert build_job(job, values) == job


@pytest.mark.parametrize("job", JOBS)
def test_the_text_of_a_field_is_parsed_to_the_same_value(job):
    for found in job_fields():
        value = field_value(job, found.key)
        if found.kind in ("number", "words", "text") and value is not None:
            assert parse_text(found, value_text(value)) == value


@pytest.mark.parametrize(("tuning", "quantization"), [(FULL, None), (LORA, "none"), (QLORA, "nf4")])
def test_the_kind_of_fine_tuning_sets_the_adapters(tuning, quantization):
    values = {found.key: field_value(Job(), found.key) for found in job_fields()} | {"lora": tuning}
    job = build_job(Job(), values)
    assert (job.lora.quantization if job.lora else None) == quantization
    assert field_value(job, "lora") == tuning


def shown(tuning: str = FULL, mode: str = "train", engine: str = "transformers") -> set[str]:
    return shown_fields({"lora": tuning, "training.mode": mode, "inference.engine": engine}, job_fields())


def test_irrelevant_fields_are_hidden():
    assert "lora.rank" not in shown(FULL)
    assert "lora.rank" in shown(LORA)
    assert "lora.quantization" not in shown(LORA)
    assert "lora.quantization" in shown(QLORA)
    assert "inference.engine" not in shown()
    assert "inference.engine" in shown(mode="inference")
    assert "inference.gpu_memory_utilization" not in shown(mode="inference")
    assert "inference.gpu_memory_utilization" in shown(mode="inference", engine="vllm")


def test_a_fraction_is_limited_to_its_bounds_and_an_empty_optional_field_is_none():
    assert parse_text(field("inference.gpu_memory_utilization"), "0.85") == 0.85
    with pytest.raises(InputError, match=r"such as 0\.9"):
        parse_text(field("inference.gpu_memory_utilization"), "90")
    assert parse_text(field("inference.prefill_tokens"), "") is None


def test_serving_settings_apply_only_to_inference():
    values = {found.key: field_value(Job(), found.key) for found in job_fields()} | {"inference.engine": "vllm"}
    assert build_job(Job(), values).inference is None
    served = build_job(Job(), values | {"training.mode": "inference"})
    assert served.inference.engine == "vllm"


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "", "9" * 5000])
def test_invalid_numbers_are_reported_with_the_field_and_the_value(text):
    with pytest.raises(InputError, match="micro-batch must be a whole number"):
        parse_text(field("training.micro_batch"), text)


@pytest.mark.parametrize(("text", "number"), [("8", 8), (" 16 ", 16), ("1_024", 1024), ("131,072", 131072)])
def test_numbers_may_have_separators_and_suffixes(text, number):
    assert parse_text(field("training.sequence_length"), text) == number


def test_names_are_a_list_except_for_a_single_keyword():
    assert parse_text(field("lora.targets"), "q_proj, v_proj") == ["q_proj", "v_proj"]
    assert parse_text(field("lora.targets"), "all-linear") == "all-linear"
