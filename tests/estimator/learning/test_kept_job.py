"""What is kept of a job names nothing of the user's, and tells it from others."""

import json
from typing import Any

import msgspec
import pytest

from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping, job_to_mapping
from vramtop.estimator.learning.kept_job import kept_job, settings_digest
from vramtop.estimator.learning.measurement_json import measurement_from_json
from vramtop.estimator.model.find_config import resolve_model

MARK = "zq7mark"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "_name_or_path": f"/home/{MARK}",
    MARK: 3,
}
GPT2: dict[str, Any] = {
    "model": {"id": "gpt2"},
    "training": {"micro_batch": 4, "sequence_length": 512},
    "parallel": {"strategy": "fsdp2", "data_shard": 8},
}


def gpt2(**tables: Any) -> Job:
    return job_from_mapping({**GPT2, **tables}, where="test")


def test_no_text_of_a_job_is_kept_but_its_strategy() -> None:
    job = Job(name=MARK)

    def fill(table: Any) -> Any:
        changes = {}
        for each in msgspec.structs.fields(type(table)):
            value = getattr(table, each.name)
            if isinstance(value, msgspec.Struct):
                changes[each.name] = fill(value)
            elif "str" in str(each.type) and "dict[" not in str(each.type).partition("|")[0]:
                changes[each.name] = MARK if "list" not in str(each.type) else [MARK]
        return msgspec.structs.replace(table, **changes)

    filled = fill(job)
    assert str(job_to_mapping(filled)).count(MARK) > 10
    kept = kept_job(filled, CONFIG)
    assert MARK not in str(job_to_mapping(kept.job)) + kept.model + kept.shape + kept.settings
    assert kept.model == "llama"


def test_its_batch_and_its_parallel_sizes_are_kept() -> None:
    kept = kept_job(gpt2(lora={"rank": 8}, name=MARK), resolve_model(gpt2().model).config).job
    assert (kept.training, kept.parallel) == (gpt2().training, gpt2().parallel)
    assert kept.lora is None


@pytest.mark.parametrize(
    ("tables", "same"),
    [
        ({"name": MARK}, True),
        ({"target": {"gpu": "h100"}}, True),
        ({"software": {"torch": "2.9.1"}}, True),
        ({"lora": {"rank": 8}}, False),
        ({"parallel": {**GPT2["parallel"], "fsdp_wrap_classes": ["MyBlock"]}}, False),
        ({"training": {**GPT2["training"], "optimizer": "my:Own"}}, False),
    ],
)
def test_settings_on_which_a_step_depends_tell_jobs_apart(tables: dict[str, Any], same: bool) -> None:
    assert (settings_digest(gpt2(**tables)) == settings_digest(gpt2())) == same


@pytest.mark.parametrize(("hidden", "same"), [({}, True), ({"hidden": "0123456789abcdef"}, False)])
def test_a_record_that_has_the_settings_themselves_is_of_the_same_job(hidden: dict[str, str], same: bool) -> None:
    record = {
        "run": "a",
        "time": 1.0,
        "state": "ended",
        "model": "gpt2",
        "shape": "b",
        "observed": {},
        "predicted": [],
        "job": {key: GPT2[key] for key in ("training", "parallel")},
        **hidden,
    }
    read = measurement_from_json(json.loads(json.dumps(record)))
    assert (read.settings == settings_digest(gpt2())) == same
