from pathlib import Path

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import (
    Inference,
    Job,
    Lora,
    ModelSpec,
    OtherModel,
    Parallel,
    Software,
    Target,
    Training,
    Uncertainties,
)
from vramtop.estimator.job.job_file.changes import job_differences, with_changes
from vramtop.estimator.job.job_file.load_and_save import job_to_toml, load_job, save_job

LLAMA = ModelSpec(id="meta-llama/Llama-3.1-8B")
JOBS = {
    "defaults": Job(model=LLAMA),
    "named": Job(name='a "b" \\ c\n#d', model=LLAMA, training=Training(micro_batch=4, compile=True)),
    "adapters": Job(model=LLAMA, lora=Lora(rank=8, targets=["q_proj", "k_proj"], quantization="nf4")),
    "sharded": Job(model=LLAMA, parallel=Parallel(strategy="fsdp2", data_shard=8, reshard_after_forward=False)),
    "aimed": Job(
        model=LLAMA, target=Target(gpu="h100-80gb"), software=Software(torch="2.6"), unsure=Uncertainties(logits="more")
    ),
    "served": Job(model=LLAMA, training=Training(mode="inference"), inference=Inference(engine="vllm")),
    "head only": Job(
        model=LLAMA, training=Training(trainable=["lm_head", "model.layers.31", "!*bias"], trainable_parameters=4097)
    ),
    "with a teacher": Job(
        model=LLAMA,
        other_models=[
            OtherModel(role="teacher", id="meta-llama/Llama-3.1-70B", dtype="bf16", sharded=True, count=2),
            OtherModel(role="ema", dtype="fp32", on_gpu=False),
            OtherModel(role="reward", config={"model_type": "llama"}, task="sequence-classification", forward=False),
        ],
    ),
    "inline": Job(model=ModelSpec(config={"model_type": "llama", "rope": {"a b": 1.5, "on": True}, "eos": [1, 2]})),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_written_job_reads_back_as_the_same_job(job, tmp_path):
    save_job(job, tmp_path / "job.toml")
    assert load_job(tmp_path / "job.toml") == job


def test_defaults_are_written_out_so_that_later_ones_change_nothing():
    text = job_to_toml(Job(model=LLAMA))
    assert 'optimizer = "auto"' in text
    assert "sequence_length = 2048" in text
    assert "[software]" not in text


def test_a_relative_folder_is_written_as_an_absolute_one(tmp_path, monkeypatch):
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "models" / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    save_job(Job(model=ModelSpec(id="models/mine")), Path("job.toml"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_job(tmp_path / "job.toml").model.id == str(tmp_path / "models" / "mine")


def test_an_existing_file_is_replaced_only_on_request(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text("mine")
    with pytest.raises(InputError, match="already exists"):
        save_job(Job(model=LLAMA), path)
    assert path.read_text() == "mine"
    save_job(Job(model=LLAMA), path, overwrite=True)
    assert load_job(path) == Job(model=LLAMA)
    assert [each.name for each in tmp_path.iterdir()] == ["job.toml"]


def test_a_missing_folder_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="No such file or directory"):
        save_job(Job(model=LLAMA), tmp_path / "none" / "job.toml")


@pytest.mark.parametrize("before", JOBS.values(), ids=JOBS)
def test_differences_lead_from_one_job_to_the_other(before):
    for after in JOBS.values():
        assert with_changes(before, job_differences(before, after)) == after


def test_a_job_file_that_is_replaced_keeps_its_comments(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('# mine\n[model]\nid = "gpt2" # small\n\n[training]\nmicro_batch = 4 # as always\n')
    save_job(with_changes(load_job(path), {"training.micro_batch": 2, "lora.rank": 8}), path, overwrite=True)
    assert "# mine" in path.read_text()
    assert "micro_batch = 2 # as always" in path.read_text()
    assert load_job(path) == Job(model=ModelSpec(id="gpt2"), training=Training(micro_batch=2), lora=Lora(rank=8))


def test_a_file_that_cannot_be_edited_is_rewritten(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('[model]\nid = "gpt2"\n[lora]\nrank = 4\n')
    save_job(Job(model=ModelSpec(id="gpt2")), path, overwrite=True)
    assert load_job(path) == Job(model=ModelSpec(id="gpt2"))


def test_other_models_are_replaced_as_a_whole_and_comments_stay(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('[model]\nid = "gpt2"  # small\n\n[[other_models]]\nrole = "teacher"\nid = "gpt2-xl"\n')
    job = load_job(path)
    save_job(with_changes(job, {"other_models": [{"role": "ema"}, {"role": "reference"}]}), path, overwrite=True)
    assert "# small" in path.read_text()
    assert [model.role for model in load_job(path).other_models] == ["ema", "reference"]
    assert job_differences(load_job(path), job)["other_models"][0]["id"] == "gpt2-xl"
