"""What is kept of a job names nothing of the user's."""

import json
from pathlib import Path
from typing import Any

import msgspec

from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping, job_to_mapping
from vramtop.estimator.learning.measurement import private_job
from vramtop.estimator.model.checkpoint import job_of_model
from vramtop.estimator.model.find_config import resolve_model

MARK = "zq7mark"


def kept(mapping: dict[str, Any]) -> tuple[Job, Job]:
    """A job and what is kept of it."""
    job = job_from_mapping(mapping, where="test")
    job = job_of_model(job, resolve_model(job.model))
    return job, private_job(job, resolve_model(job.model).config).job


def test_a_folder_a_name_or_a_key_is_not_kept(tmp_path: Path) -> None:
    folder = tmp_path / MARK
    folder.mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "vocab_size": 1000,
        "_name_or_path": f"/home/{MARK}",
        MARK: 3,
        "id2label": {"0": MARK},
        "label2id": {MARK: 0},
        "architectures": [MARK],
    }
    (folder / "config.json").write_text(json.dumps(config))
    job, private = kept(
        {
            "name": MARK,
            "model": {"id": str(folder), "code_folder": f"/{MARK}"},
            "training": {
                "optimizer": f"{MARK}:{MARK}",
                "optimizer_options": {"lr": 0.1, "key": MARK},
                "trainable": [f"{MARK}.*"],
            },
            "lora": {"targets": [MARK, "q_proj"]},
            "parallel": {"tensor_plan": {MARK: "colwise"}, "fsdp_wrap_classes": [MARK]},
            "other_models": [{"id": MARK, "role": "teacher"}],
            "software": {"torch": f"2.9.1+{MARK}"},
            "target": {"gpu": MARK},
            "run": {"output_dir": MARK, "report_to": [MARK], "inference_endpoint": f"https://{MARK}.example"},
        }
    )
    text = json.dumps(job_to_mapping(private))
    assert MARK not in text
    assert str(tmp_path) not in text
    assert private.software.torch == "2.9.1"
    assert private.lora is not None
    assert private.lora.targets[1] == "q_proj"
    assert private.model.config is None
    assert job_from_mapping(job_to_mapping(private), where="kept") == private
    assert private_job(job, config).model == "llama"


def test_every_free_text_of_a_job_is_removed_by_default() -> None:
    """Also that of a field which is added later: the walk keeps words of closed lists only."""
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
    assert MARK not in str(job_to_mapping(private_job(filled, None).job))


def test_jobs_that_differ_in_a_name_only_are_told_apart() -> None:
    one, _ = kept({"model": {"id": "gpt2"}, "parallel": {"fsdp_wrap_classes": ["MyBlock"]}})
    other, _ = kept({"model": {"id": "gpt2"}, "parallel": {"fsdp_wrap_classes": ["YourBlock"]}})
    config = resolve_model(one.model).config
    assert private_job(one, config).hidden != private_job(other, config).hidden
