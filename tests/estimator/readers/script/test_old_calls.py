"""Calls that today's libraries refuse: the version that runs is an older one, and so are its defaults."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from reading import read_script as read

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading
from vramtop.estimator.readers.source.old_calls import OLD_CALLS

HEAD = "import torch, transformers\nfrom transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
LOAD = "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
ARGUMENTS = "arguments = TrainingArguments('x', per_device_train_batch_size=2)\n"
TRAIN = "Trainer(model=model, args=arguments).train()\n"
SCRIPT = HEAD + LOAD + ARGUMENTS + TRAIN
PARSED = (
    HEAD
    + LOAD
    + "(arguments,) = transformers.HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
    + TRAIN
)
TRL = HEAD + LOAD + "from trl import SFTConfig, SFTTrainer\nSFTTrainer(model=model, args=SFTConfig('x')).train()\n"


def assumed(reading: JobReading) -> dict[str, str]:
    found = {each.key.partition(".")[2]: each for each in reading.findings if each.key.startswith("software.")}
    assert all(each.origin.startswith("not known; ") and not each.written for each in found.values())
    return {library: str(each.value) for library, each in found.items()}


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        (SCRIPT, {}),
        (SCRIPT.replace("=2)", "=2, evaluation_strategy='no')"), {"transformers": "4.50"}),
        (SCRIPT.replace("=2)", "=2, eval_strategy='no')"), {}),
        (SCRIPT.replace("=2)", "=2, overwrite_output_dir=True)"), {"transformers": "4.57"}),
        (SCRIPT.replace("B')", "B', load_in_8bit=True)"), {"transformers": "4.57"}),
        (SCRIPT.replace("B')", "B', **{'load_in_4bit': False})"), {"transformers": "4.57"}),
        (SCRIPT.replace("B')", "B', use_flash_attention_2=True)"), {"transformers": "4.52"}),
        (SCRIPT.replace("args=", "tokenizer=None, args="), {"transformers": "4.57"}),
        (SCRIPT.replace("args=", "processing_class=None, args="), {}),
        (
            SCRIPT.replace(TRAIN, f"class Own(Trainer):\n    pass\n{TRAIN.replace('Trainer(', 'Own(tokenizer=1, ')}"),
            {"transformers": "4.57"},
        ),
        (SCRIPT + "transformers.AdamW(model.parameters(), lr=1e-5)\n", {"transformers": "4.49"}),
        (SCRIPT + "torch.optim.AdamW(model.parameters(), lr=1e-5)\n", {}),
        (
            SCRIPT + "from peft import prepare_model_for_int8_training\nprepare_model_for_int8_training(model)\n",
            {"peft": "0.9", "transformers": "4.38"},
        ),
        (SCRIPT + "import peft\npeft.prepare_model_for_kbit_training(model)\n", {}),
        (TRL, {}),
        (TRL + "trl.DataCollatorForCompletionOnlyLM('x')\n", {"trl": "0.19", "transformers": "4.54"}),
        (TRL.replace("args=", "max_seq_length=512, args="), {"trl": "0.12", "transformers": "4.47"}),
        (TRL.replace("args=", "tokenizer=None, args="), {"trl": "0.15", "transformers": "4.50"}),
        (TRL.replace("'x')", "'x', max_seq_length=64)"), {"trl": "0.19", "transformers": "4.54"}),
        (TRL.replace("'x')", "'x', evaluation_strategy='no')"), {"transformers": "4.50", "trl": "0.18"}),
        (TRL.replace("'x')", "'x', use_liger=True)"), {"transformers": "4.51", "trl": "0.17"}),
        (
            TRL + "from trl.commands.cli_utils import TrlParser\nTrlParser(SFTConfig)\n",
            {"trl": "0.12", "transformers": "4.47"},
        ),
        (
            TRL.replace("args=", "max_seq_length=512, args=").replace("'x')", "'x', evaluation_strategy='no')"),
            {"trl": "0.12", "transformers": "4.47"},
        ),
        (TRL.replace("model=model", "model=unsloth.FastLanguageModel.get(model), max_seq_length=512"), {}),
    ],
)
def test_what_newer_versions_refuse_tells_the_newest_that_may_run(
    tmp_path: Path, text: str, versions: Mapping[str, str]
) -> None:
    if "unsloth" in text:
        text = "import unsloth\n" + text
    assert assumed(read(tmp_path, text)) == versions


def test_flags_and_settings_of_a_parsed_class_tell_too(tmp_path: Path) -> None:
    assert assumed(read(tmp_path, PARSED, "--evaluation_strategy", "no")) == {"transformers": "4.50"}
    assert assumed(read(tmp_path, PARSED, "--eval_strategy", "no")) == {}
    declared = PARSED.replace("(arguments,)", "class Mine(TrainingArguments):\n    no_cuda: bool = False\n(arguments,)")
    own = declared.replace("Parser(TrainingArguments)", "Parser(Mine)").replace("class", "@dataclass\nclass")
    assert assumed(read(tmp_path, "from dataclasses import dataclass\n" + own, "--no_cuda", "True")) == {}


def test_defaults_are_those_of_the_version(tmp_path: Path) -> None:
    old = read(tmp_path, PARSED, "--evaluation_strategy", "no", "--bf16", "True", "--fsdp", "full_shard")
    assert (old.value("training.optimizer"), old.value("parallel.strategy")) == ("adamw", "fsdp1")
    assert "4.50 assumed: the last that takes --evaluation_strategy" in old.evidence()["training.optimizer"]
    new = read(tmp_path, PARSED, "--bf16", "True", "--fsdp", "full_shard")
    assert (new.value("training.optimizer"), new.value("parallel.strategy")) == ("adamw-fused", "fsdp2")
    weights = read(tmp_path, PARSED, "--evaluation_strategy", "no")
    assert weights.value("training.precision") == "fp32"
    assert "training.precision" not in {each.unless for each in weights.uncertainties}


def test_attention_may_be_that_of_an_older_version_still(tmp_path: Path) -> None:
    text = SCRIPT.replace("=2)", "=2, no_cuda=False)")
    key = "model.attention"
    assert [each.direction for each in read(tmp_path, text).uncertainties if each.unless == key] == ["more"]
    stated = text.replace("B')", "B', attn_implementation='sdpa')")
    for reading in (
        read(tmp_path, stated),
        read(tmp_path, SCRIPT),
        read(tmp_path, text, versions={"transformers": "4.40"}),
    ):
        assert reading.value(key) == "sdpa"
        assert not [each for each in reading.uncertainties if each.unless == key]


@pytest.mark.parametrize(
    ("package", "optimizer"), [("pytorch_transformers", "AdamW"), ("pytorch_pretrained_bert", "BertAdam")]
)
def test_the_ancestors_of_transformers_know_only_eager_attention(tmp_path: Path, package: str, optimizer: str) -> None:
    text = f"""
from {package} import {optimizer}, BertForSequenceClassification
model = BertForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)
optimizer = {optimizer}(model.parameters(), lr=2e-5)
for batch in loader:
    model(**batch)[0].backward()
    optimizer.step()
"""
    reading = read(tmp_path, text)
    assert reading.value("software.transformers") == "2.0"
    assert reading.job().training.optimizer == "adamw-hf"
    assert not any("optimizer" in each for each in reading.warnings)


def test_a_known_version_counts(tmp_path: Path) -> None:
    text = SCRIPT.replace("=2)", "=2, evaluation_strategy='no')")
    reading = read(tmp_path, text, versions={"transformers": "4.31.0"})
    assert reading.value("software.transformers") == "4.31.0"
    (tmp_path / "requirements.txt").write_text("transformers==4.33.0\n")
    assert read(tmp_path, text).value("software.transformers") == "4.33.0"


def test_an_installed_version_that_refuses_the_script_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("=2)", "=2, evaluation_strategy='no')"))
    reading = read_launch(
        ("python", "train.py"), environ={}, cwd=tmp_path, beside_python={"transformers": "5.23.0", "torch": "2.8.0"}
    )
    assert (reading.value("software.transformers"), reading.value("software.torch")) == ("4.50", "2.8.0")
    assert any("has 5.23.0, which is not counted" in each for each in reading.warnings)


def test_the_last_possible_version_may_be_an_older_one(tmp_path: Path) -> None:
    text = "from transformers import AutoModelForCausalLM\nfrom trl import DPOConfig, DPOTrainer\n"
    text += "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
    text += "DPOTrainer(model, args=DPOConfig('out', max_prompt_length=8, max_length=64)).train()\n"
    reading = read(tmp_path, text)
    older = reading.job({"training.micro_batch": 1}).unsure.older
    assert reading.value("software.trl") == "0.28"
    assert (older["software.trl"], older["software.transformers"]) == ("0.15", "4.49")
    assert (reading.value("training.precision"), older["training.precision"]) == ("bf16", "fp32")


def test_weights_of_unknown_code_and_of_unknown_versions_are_in_doubt(tmp_path: Path) -> None:
    text = SCRIPT.replace("Qwen/Qwen2.5-0.5B'", "nobody/model', trust_remote_code=True")
    old = read(tmp_path, text.replace("=2)", "=2, no_cuda=False)"))
    assert any("the model's own code may set its dtype" in sentence for sentence in old.warnings)
    assert old.value("training.precision") == "bf16"
    assert ("weights", "more", "training.precision") in {
        (each.component, each.direction, each.unless) for each in old.uncertainties
    }
    newest = read(tmp_path, SCRIPT.replace("Qwen/Qwen2.5-0.5B", "nobody/model"))
    assert newest.value("training.precision") == "bf16"
    assert newest.job().unsure.older["training.precision"] == "fp32"
    sharded = read(tmp_path, PARSED.replace("B')", "B', trust_remote_code=True)"), "--bf16", "--fsdp", "full_shard")
    assert "training.precision" not in {each.unless for each in sharded.uncertainties}


def test_every_row_names_its_source_and_older_ones_come_with_their_time() -> None:
    for row in OLD_CALLS:
        assert row.names
        assert row.source
        assert (row.transformers is None) == (row.library == "transformers")
