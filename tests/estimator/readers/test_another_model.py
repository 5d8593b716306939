"""Given another model, a reading is that of the same program with this model: nothing of the old one remains."""

from pathlib import Path

import pytest

from vramtop.estimator.job.job import Job, ModelSpec, Training
from vramtop.estimator.job.job_file.changes import with_changes, with_old_model_removed
from vramtop.estimator.readers.config_file import read_config_file
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import GIVEN
from vramtop.estimator.readers.source.settings import Setting

LLAMA = "llama-3.1-8b"
SCRIPT = """
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model
name = "{model}"
config = AutoConfig.from_pretrained(name)
{change}
model = AutoModelForCausalLM.from_pretrained(name, config=config)
model = get_peft_model(model, LoraConfig(r=4))
args = TrainingArguments(per_device_train_batch_size=4, output_dir="x", run_name="{model} run")
Trainer(model=model, args=args, train_dataset=None).train()
"""


def test_a_script_is_read_as_if_it_named_the_other_model(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(SCRIPT.format(model=LLAMA, change="config.num_hidden_layers = 2"))
    (tmp_path / "new.py").write_text(SCRIPT.format(model="gpt2", change=""))
    given = {"model.id": "gpt2"}
    old = read_launch(["python", "old.py"], environ={}, cwd=tmp_path, given=given)
    new = read_launch(["python", "new.py"], environ={}, cwd=tmp_path)
    assert old.evidence()["model.id"] == GIVEN
    (said,) = set(old.warnings) - set(new.warnings)
    assert LLAMA in said
    assert said.endswith("the model that you gave is counted instead.")
    assert set(new.warnings) < set(old.warnings)
    assert old.uncertainties == new.uncertainties
    assert old.missing == new.missing
    assert old.value("lora.targets") == new.value("lora.targets") == ["c_attn"]
    assert old.value("training.precision") == new.value("training.precision")
    job, expected = old.job(given), new.job()
    assert (job.name, job.label, job.model.config) == (None, "gpt2", None)
    assert (job.model, job.training, job.lora) == (expected.model, expected.training, expected.lora)
    evidence = "\n".join(old.evidence().values())
    assert "llama" not in evidence.lower()


def test_what_a_running_model_reports_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(SCRIPT.format(model=LLAMA, change=""))
    reported = {"running_model_config": Setting(value={"model_type": "llama", "hidden_size": 64}, origin="the probe")}
    line = ["python", "old.py"]
    reading = read_launch(line, environ={}, cwd=tmp_path, reported=reported, given={"model.id": "gpt2"})
    assert reading.value("model.config") is None


def test_the_trained_parameters_of_another_model_are_left_out(tmp_path: Path) -> None:
    line = ["trl", "sft", "--model_name_or_path", LLAMA, "--use_peft", "--lora_modules_to_save", "lm_head"]
    assert read_launch(line, environ={}, cwd=tmp_path).value("training.trainable") == ["*lm_head.*"]
    given = {"model.id": "gpt2", "training.trainable": ["lm_head"]}
    reading = read_launch(line, environ={}, cwd=tmp_path, given={"model.id": "gpt2"})
    assert reading.value("training.trainable") is None
    assert (
        "The trained parameters were read for another model: all parameters of this one are counted."
    ) in reading.warnings
    assert reading.job({"model.id": "gpt2"}).unsure.optimizer == "less"
    assert reading.job(given).unsure.optimizer == "no"


def test_an_unknown_old_model_is_neither_missing_nor_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "tune.yaml"
    file.write_text("model: {_component_: torchtune.models.own.own_9b}\nbatch_size: 2\ntokenizer: {max_seq_len: 128}\n")
    assert any("own_9b" in warning for warning in read_config_file(file, environ={}).warnings)
    reading = read_config_file(file, environ={}, given={"model.id": "gpt2"})
    assert reading.missing == ()
    assert not any("own_9b" in warning for warning in reading.warnings)


@pytest.mark.parametrize("key", ["model.id", "model.config"])
def test_another_model_takes_what_a_job_file_says_of_the_old_one_with_it(key: str) -> None:
    job = Job(
        name="old",
        model=ModelSpec(id="old/model", config={"model_type": "llama"}, trust_remote_code=True),
        training=Training(micro_batch=3, trainable=["lm_head"]),
    )
    other = {"model.id": "gpt2"} if key == "model.id" else {"model.config": {"model_type": "gpt2"}}
    changes = with_old_model_removed(job, {**other, "training.micro_batch": 4})
    assert changes["training.micro_batch"] == 4
    assert changes["name"] is changes["training.trainable"] is None
    assert changes["model.trust_remote_code"] is False
    assert {changes["model.id"], str(changes["model.config"])} == {
        other.get("model.id"),
        str(other.get("model.config")),
    }
    assert with_old_model_removed(job, {"model.id": "old/model"}) == {"model.id": "old/model"}
    assert with_old_model_removed(job, {"training.micro_batch": 4}) == {"training.micro_batch": 4}
    kept = with_old_model_removed(job, {**other, "name": "new", "model.trust_remote_code": True})
    assert (kept["name"], kept["model.trust_remote_code"]) == ("new", True)


def test_which_parts_of_the_new_model_are_frozen_is_uncertain() -> None:
    job = Job(model=ModelSpec(id="old/model"), training=Training(trainable=["!*"]))
    changed = with_changes(job, with_old_model_removed(job, {"model.id": "gpt2"}))
    assert (changed.training.trainable, changed.unsure.gradients, changed.unsure.optimizer) == (None, "less", "less")
    given = with_old_model_removed(job, {"model.id": "gpt2", "training.trainable": ["lm_head"]})
    assert with_changes(job, given).unsure.gradients == "no"
