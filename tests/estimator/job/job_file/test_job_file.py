"""Job files: read, checked, changed and written; jobs that are made in Python are checked likewise."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.effective_batch import effective_batch
from vramtop.estimator.job.job import (
    Inference,
    Job,
    Lora,
    ModelSpec,
    OtherModel,
    Parallel,
    Rollout,
    Software,
    Target,
    Training,
    Uncertainties,
)
from vramtop.estimator.job.job_file.changes import (
    job_differences,
    job_from_mapping,
    job_to_mapping,
    parse_assignment,
    with_changes,
)
from vramtop.estimator.job.job_file.load_and_save import job_to_toml, load_job, save_job
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.job.settings import Program

GOOD = """
name = "sft"
[model]
id = "meta-llama/Llama-3.1-8B"
[training]
micro_batch = 2
precision = "bf16"
[lora]
targets = "all-linear"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("micro_batch", "micro_btach"), ["training.micro_btach", "'training.micro_batch'"]),
        (GOOD.replace("[training]", "[trainng]"), ["trainng", "'training'"]),
        (GOOD.replace('"bf16"', '"bf17"'), ["training.precision", "'bf17'", "'bf16'"]),
        (GOOD + "[[other_models]]\nrole = 'techer'\n", ["other_models.1.role", "'techer'", "'teacher'"]),
        (GOOD + "[[other_models]]\nrol = 'teacher'\n", ["other_models.1.rol", "'other_models.1.role'"]),
        (GOOD + "[[other_models]]\n[[other_models]]\ncount = 0\n", ["other_models.2.count", "0", "at least 1"]),
        (GOOD.replace("= 2", "= 2\ntrainable = []"), ["training: trainable is an empty list", '["!*"]']),
        (GOOD.replace("= 2", "= 2\ntrainable = ['a', '!']"), ["training: trainable", "'!'"]),
        (GOOD.replace("= 2", "= 2\ntrainable_parameters = -1"), ["training.trainable_parameters", "-1"]),
        ("[model\n", ["not TOML"]),
        ("", ["no model"]),
        ("[training]\nmicro_batch = 1\n", ["no model", "[model]"]),
    ],
)
def test_errors_name_the_file_the_key_the_value_and_the_nearest_key(tmp_path, text, words) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_job(path)
    for word in [str(path), *words]:
        assert word in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_or_binary_file_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.toml: no such file"):
        load_job(tmp_path / "absent.toml")
    (tmp_path / "job.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        load_job(tmp_path / "job.toml")
    (tmp_path / "job.toml").write_text("x = " + "[" * 50_000)
    with pytest.raises(InputError, match="not TOML"):
        load_job(tmp_path / "job.toml")


def test_a_folder_beside_the_file_is_found_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    job = load_job(write(tmp_path, '[model]\nid = "tiny"\n'))
    assert job.model.id == str(tmp_path / "tiny")


def test_changes_by_dotted_key() -> None:
    job = with_changes(Job(), {"training.micro_batch": 4, "lora.rank": 8})
    assert job.training.micro_batch == 4
    assert job.lora == Lora(rank=8)
    assert with_changes(job, {"lora": None}).lora is None
    with pytest.raises(InputError, match=r"'training\.micro_batch'"):
        with_changes(Job(), {"training.microbatch": 4})


def test_assignments_are_toml_values_or_words() -> None:
    assert parse_assignment("training.micro_batch=4") == ("training.micro_batch", 4)
    assert parse_assignment("training.precision=bf16") == ("training.precision", "bf16")
    assert parse_assignment('lora.targets=["q_proj"]') == ("lora.targets", ["q_proj"])
    assert parse_assignment("training.compile = true") == ("training.compile", True)
    assert parse_assignment("software.torch=1.10") == ("software.torch", "1.10")
    with pytest.raises(InputError, match="KEY=VALUE"):
        parse_assignment("micro_batch")


def test_the_run_table_is_read(tmp_path: Path) -> None:
    text = '[run]\noutput_dir = "out"\nreport_to = ["wandb"]\nsave_total_limit = 2\n'
    job = load_job(write(tmp_path, GOOD + text))
    assert (job.run.output_dir, job.run.report_to, job.run.inference_key) == ("out", ["wandb"], "NSS_INFERENCE_KEY")
    assert job_from_mapping(job_to_mapping(job), where="here") == job
    assert "run" not in job_to_mapping(load_job(write(tmp_path, GOOD)))
    for wrong in ("save_total_limit = 0", 'required_environment = ["MY KEY"]', 'output = "x"'):
        with pytest.raises(InputError, match="run"):
            load_job(write(tmp_path, f"{GOOD}[run]\n{wrong}\n"))


def test_user_code_is_looked_up_beside_the_job_file(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('[model]\nid = "gpt2"\n[parallel]\ntensor = 2\ntensor_plan = "plans:attention"\n')
    assert load_job(file).model.code_folder == str(tmp_path.resolve())
    file.write_text('[model]\nid = "models:build"\ncode_folder = "src"\n')
    assert load_job(file).model.code_folder == str((tmp_path / "src").resolve())
    file.write_text('[model]\nid = "gpt2"\n')
    job = load_job(file)
    assert (job.model.code_folder, job.model.trust_remote_code, job.parallel.tensor_plan) == (None, False, None)


def test_an_example_of_two_sequences_is_two_sequences_of_each_pass(tmp_path: Path) -> None:
    pairs = resolve_job(load_job(write(tmp_path, GOOD.replace("= 2", "= 2\nsequences_per_example = 2"))))
    assert (pairs.training.micro_batch, pairs.sequences, pairs.local_tokens) == (2, 4, 4 * 2048)
    batch = effective_batch(pairs.job)
    assert batch.describe() == "2 examples of 2 sequences and 8,192 tokens a step: micro-batch 2"


def test_patterns_of_parameter_names_are_set_from_words_and_other_models_as_a_whole() -> None:
    assert parse_assignment("training.trainable=lm_head, !*bias") == ("training.trainable", ["lm_head", "!*bias"])
    assert parse_assignment('training.trainable=["mlp"]') == ("training.trainable", ["mlp"])
    key, value = parse_assignment('other_models=[{role = "ema", on_gpu = false}]')
    (ema,) = with_changes(Job(), {key: value}).other_models
    assert (ema.role, ema.on_gpu, ema.runs_forward) == ("ema", False, False)
    with pytest.raises(InputError, match="other_models is a list of tables"):
        with_changes(Job(), {"other_models.role": "ema"})
    with pytest.raises(InputError, match="trainable is an empty list"):
        with_changes(Job(), {"training.trainable": []})


@pytest.mark.parametrize("text", ["{rank = 64, amsgrad = true}", "rank=64, amsgrad=true"])
def test_options_of_an_optimizer_are_a_table(text: str) -> None:
    key, value = parse_assignment(f"training.optimizer_options={text}")
    assert with_changes(Job(), {key: value}).training.optimizer_options == {"rank": 64, "amsgrad": True}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rnk": 64}, r"no optimizer has an option 'rnk'.*known are amsgrad"),
        ({"rank": "64"}, "rank must be a whole number of at least 1"),
        ({"rank": 0}, "rank must be a whole number"),
        ({"amsgrad": 1}, "amsgrad must be true or false"),
        ({"targets": 3}, "targets must be a word or a list of words"),
    ],
)
def test_options_that_no_optimizer_has(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        job_from_mapping({"training": {"optimizer_options": options}}, where="job.toml")
    with pytest.raises(InputError, match=words):
        with_changes(Job(), {"training.optimizer_options": options})


def test_a_device_map_is_a_rule_or_a_table(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(
        '[model]\nid = "gpt2"\n[parallel]\npipeline = 2\nmax_memory = {0 = "20GiB", cpu = 1000}\n'
        'device_map = {"transformer.wte" = 0, "transformer.h" = "cpu"}\n[saving]\nweights = "sharded"\n'
    )
    job = load_job(file)
    assert job.parallel.device_map == {"transformer.wte": 0, "transformer.h": "cpu"}
    assert job.saving
    assert (job.saving.weights, job.saving.to_cpu, job.saving.optimizer) == ("sharded", True, False)
    copy = tmp_path / "copy.toml"
    save_job(job, copy)
    assert load_job(copy) == job
    assert with_changes(job, {"parallel.device_map": "auto"}).parallel.device_map == "auto"
    with pytest.raises(InputError, match="one process"):
        with_changes(job, {"parallel.tensor": 2})


def test_a_program_is_saved_with_its_folder_and_read_again(in_folder):
    job = Job(program=Program(command="python train.py --lr 1", steps=2))
    save_job(job, in_folder / "job.toml")
    found = load_job(in_folder / "job.toml")
    folder, file = str(in_folder.resolve()), str(in_folder / "job.toml")
    assert found.program == Program(command="python train.py --lr 1", folder=folder, steps=2, file=file)
    save_job(found, in_folder / "copy.toml")
    assert "job.toml" not in (in_folder / "copy.toml").read_text()  # the copy is a file of its own
    assert "[training]" not in (in_folder / "job.toml").read_text()
    assert found.label == "train.py"


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
    "pairs": Job(
        model=LLAMA,
        training=Training(sequences_per_example=2),
        rollout=Rollout(sleep=True),
        software=Software(trl="1.0"),
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


def test_a_relative_folder_is_written_as_an_absolute_one(in_folder, monkeypatch):
    (in_folder / "models" / "mine").mkdir(parents=True)
    (in_folder / "models" / "mine" / "config.json").write_text("{}")
    save_job(Job(model=ModelSpec(id="models/mine")), Path("job.toml"))
    (in_folder / "elsewhere").mkdir()
    monkeypatch.chdir(in_folder / "elsewhere")
    assert load_job(in_folder / "job.toml").model.id == str(in_folder / "models" / "mine")


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


LLAMA_8B = ModelSpec(id="llama-3.1-8b")


def test_a_wrong_value_of_a_job_made_in_python_is_named() -> None:
    sentence = r"training\.precision = 'pure-bf16' is not one of .*bf16.*did you mean"
    with pytest.raises(InputError, match=sentence):
        estimate(Job(model=LLAMA_8B, training=Training(precision="pure-bf16")))


def test_a_right_job_is_estimated() -> None:
    """Lists and tables of values are as valid in Python as in a file."""
    training = Training(optimizer="galore-adamw", optimizer_options={"rank": 64}, trainable=["!embed*"])
    job = Job(model=LLAMA_8B, training=training)
    assert estimate(msgspec.structs.replace(job, name="a")).peak.device_bytes == estimate(job).peak.device_bytes


@pytest.mark.parametrize(
    ("command", "label"),
    [
        ("python src/train.py --epochs 3", "train.py"),
        ("torchrun --nproc-per-node 2 train.py --steps 50", "train.py"),
        ("python -m trl.scripts.sft --max_steps 50", "trl.scripts.sft"),
        ("accelerate launch -m pack.train out", "pack.train"),
        ("LR=1e-4 .venv/bin/trl sft --max_steps 50", "trl"),
        ("", "program"),
    ],
)
def test_a_program_is_named_by_its_script_or_module(command: str, label: str) -> None:
    assert Job(program=Program(command=command)).label == label
