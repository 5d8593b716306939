"""Programs as they are started: which branches they take, what they open, and what is said of what is not followed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

LOAD = "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
HEAD = "import torch\nfrom transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments\n"
ADAPT = "from peft import LoraConfig, get_peft_model\nmodel = get_peft_model(model, LoraConfig(r=A.lora_r))\n"
TRAIN = "Trainer(model=model, args=TrainingArguments('x', per_device_train_batch_size=2)).train()\n"


def read(folder: Path, text: str, *arguments: str, versions: Mapping[str, str] | None = None) -> JobReading:
    (folder / "train.py").write_text(text)
    return read_launch(["python", "train.py", *arguments], environ={}, cwd=folder, versions=versions)


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def doubts(reading: JobReading) -> str:
    return "\n".join(reading.warnings)


DATACLASS = (
    "from dataclasses import dataclass\n"
    "@dataclass\nclass A:\n    lora_enable: bool = False\n    lora_r: int = 8\n"
    "(A,) = HfArgumentParser(A).parse_args_into_dataclasses()\n"
)
OWN_PARSER = DATACLASS.replace(
    "(A,) = HfArgumentParser(A).parse_args_into_dataclasses()",
    "class Plus(HfArgumentParser):\n"
    "    def parse(self):\n        return self.parse_args_into_dataclasses()[0]\n"
    "A = Plus(A).parse()",
)
STORE_TRUE = (
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lora_enable', action='store_true')\n"
    "p.add_argument('--lora_r', type=int, default=8)\nA = p.parse_args()\n"
)


@pytest.mark.parametrize("options", [DATACLASS, OWN_PARSER, STORE_TRUE], ids=["dataclass", "own parser", "store_true"])
def test_adapters_are_counted_where_their_guard_holds(tmp_path: Path, options: str) -> None:
    text = HEAD + options + LOAD + f"if A.lora_enable:\n{indented(ADAPT)}" + TRAIN
    on = ("--lora_enable",) if options is STORE_TRUE else ("--lora_enable", "True")
    for arguments, rank in ((on, 8), ((*on, "--lora_r", "32"), 32), ((), None)):
        assert read(tmp_path, text, *arguments).value("lora.rank") == rank, arguments
    evidence = read(tmp_path, text, *on).evidence()
    assert "because --lora_enable is True" in evidence["lora.rank"]
    early = text.replace(f"if A.lora_enable:\n{indented(ADAPT)}", "")
    helper = (
        f"def adapted(model):\n    if not A.lora_enable:\n        return model\n{indented(ADAPT)}    return model\n"
    )
    early = early.replace(TRAIN, f"{helper}model = adapted(model)\n{TRAIN}")
    assert read(tmp_path, early, *on).value("lora.rank") == 8
    assert read(tmp_path, early).value("lora.rank") is None


UNDECIDED = HEAD + "import elsewhere\nA = elsewhere.settings()\n" + LOAD
SIZES = {"training.sequence_length": 512}


def test_both_sides_of_a_guard_that_cannot_be_decided_are_read(tmp_path: Path) -> None:
    reading = read(tmp_path, f"{UNDECIDED}if A.lora:\n{indented(ADAPT)}{TRAIN}")
    assert reading.value("lora.rank") is None
    (other,) = reading.job(SIZES).alternatives
    assert "whether A.lora holds is only known when the script runs" in other.why
    assert "lora.rank" in other.changes


BOTH = (
    "if A.long:\n    args = TrainingArguments('x', per_device_train_batch_size=64)\n"
    "else:\n    args = TrainingArguments('x', per_device_train_batch_size=1, gradient_checkpointing=True)\n"
    "Trainer(model=model, args=args).train()\n"
)
"""Checkpointing and the batch in one branch."""


def test_the_range_holds_both_sides_of_a_guard_and_the_larger_is_counted(tmp_path: Path) -> None:
    sides = [
        estimate(read(tmp_path, UNDECIDED + BOTH.replace("A.long", answer)).job(SIZES), environ={}, method="formula")
        for answer in ("True", "False")
    ]
    found = estimate(read(tmp_path, UNDECIDED + BOTH).job(SIZES), environ={}, method="formula")
    large, small = (each.peak for each in sides)
    assert found.peak.device_bytes == large.device_bytes > 20 * small.device_bytes
    assert found.peak.low_bytes <= small.device_bytes < large.device_bytes <= found.peak.high_bytes
    assert any("whether A.long holds" in each and "GiB less" in each for each in found.warnings)


def test_conditions_that_raise_the_memory_together_are_estimated_together(tmp_path: Path) -> None:
    batch = "size = 4\nif A.big:\n    model, size = AutoModelForCausalLM.from_pretrained('gpt2-medium'), 64\n"
    text = UNDECIDED.replace("Qwen/Qwen2.5-0.5B", "gpt2") + batch + "more = {}\nif A.slow:\n"
    text += "    model.gradient_checkpointing_enable()\n"
    text += TRAIN.replace("batch_size=2", "batch_size=size")
    found = estimate(read(tmp_path, text).job(SIZES), environ={}, method="formula")
    largest = text.replace("A.big", "True").replace("A.slow", "False")
    smallest = text.replace("A.big", "False").replace("A.slow", "True")
    for each in (largest, smallest):
        peak = estimate(read(tmp_path, each).job(SIZES), environ={}, method="formula").peak
        assert found.peak.low_bytes <= peak.device_bytes <= found.peak.high_bytes


def test_twice_as_much_is_allowed_for_where_the_other_side_cannot_be_estimated(tmp_path: Path) -> None:
    text = UNDECIDED + "if A.small:\n    model.config.use_cache = False\n"
    text += "else:\n    model = AutoModelForCausalLM.from_pretrained('no/such-model')\n" + TRAIN
    found = estimate(read(tmp_path, text).job(SIZES), environ={}, method="formula")
    assert found.job.model.id == "Qwen/Qwen2.5-0.5B"
    assert any("whether A.small holds" in each and "is not known" in each for each in found.warnings)
    assert found.peak.high_bytes >= 2 * found.peak.device_bytes


NESTED = """
def nested(args):
    root = {}
    for name, value in vars(args).items():
        *first, last = name.split('.')
        node = root
        for part in first:
            node = node.setdefault(part, {})
        node[last] = value
    def build(table):
        if isinstance(table, dict):
            return SimpleNamespace(**{key: build(value) for key, value in table.items()})
        return table
    return build(root)
"""


@pytest.mark.parametrize("convert", ["", "args = nested(args)\n"])
def test_options_with_dots_are_tables(tmp_path: Path, convert: str) -> None:
    text = (
        f"import argparse\nfrom types import SimpleNamespace\n{HEAD}{NESTED}p = argparse.ArgumentParser()\n"
        "p.add_argument('--model.name')\np.add_argument('--train.micro_batch', type=int, default=4)\n"
        f"args = p.parse_args()\n{convert}"
        "model = AutoModelForCausalLM.from_pretrained(args.model.name)\n"
        "if getattr(args.train, 'dynamic', False):\n    raise SystemExit\n"
        + TRAIN.replace("batch_size=2", "batch_size=args.train.micro_batch")
    )
    reading = read(tmp_path, text, "--model.name", "gpt2-medium", "--train.micro_batch", "3")
    assert (reading.value("model.id"), reading.value("training.micro_batch")) == ("gpt2-medium", 3)


def test_a_file_that_the_script_parses_has_its_settings(tmp_path: Path) -> None:
    settings = {
        "per_device_train_batch_size": 3,
        "gradient_checkpointing": True,
        "output_dir": "x",
        "lora_enable": True,
    }
    (tmp_path / "args.json").write_text(json.dumps(settings))
    text = (
        f"import argparse\n{HEAD}{DATACLASS.splitlines()[0]}\n@dataclass\nclass A:\n    lora_enable: bool = False\n"
        "    lora_r: int = 8\np = argparse.ArgumentParser()\np.add_argument('--file')\n"
        "A, args = HfArgumentParser((A, TrainingArguments)).parse_json_file(json_file=p.parse_args().file)\n"
        f"{LOAD}if A.lora_enable:\n{indented(ADAPT)}Trainer(model=model, args=args).train()\n"
    )
    reading = read(tmp_path, text, "--file", "args.json")
    assert (reading.value("training.micro_batch"), reading.value("lora.rank")) == (3, 8)
    assert reading.value("training.activation_checkpointing") == "full"
    assert "args.json" in reading.evidence()["training.micro_batch"]
    assert "parse_json_file() reads is not known" in doubts(read(tmp_path, text, "--file", "none.json"))


@pytest.mark.parametrize(
    ("file", "line", "version"),
    [
        ("requirements.txt", "torch>=2\ntransformers==4.40.1\n", "4.40.1"),
        ("pyproject.toml", '[project]\ndependencies = ["transformers<4.38", "peft"]\n', "4.37"),
        ("setup.py", "setup(install_requires=['transformers[torch]~=4.44.0'])\n", "4.44.0"),
        ("requirements.txt", "transformers>=4.40  # transformers<4.50 lacks something\n", None),
    ],
)
def test_versions_that_the_repository_pins_count(tmp_path: Path, file: str, line: str, version: str | None) -> None:
    (tmp_path / file).write_text(line)
    reading = read(tmp_path, HEAD + LOAD + TRAIN)
    assert reading.value("software.transformers") == version
    assert reading.value("training.precision") == ("bf16" if version is None else "fp32")
    installed = read(tmp_path, HEAD + LOAD + TRAIN, versions={"transformers": "5.1.0"})
    assert installed.value("software.transformers") == "5.1.0"


PAIRS = (
    "class MyTrainer(Trainer):\n"
    "    def compute_loss(self, model, inputs, **_):\n"
    "        return model(inputs['chosen']).loss - model(inputs['rejected']).loss\n"
)
CONCATENATED = (
    "def concatenated_forward(model, batch):\n    return model(torch.cat([batch['a'], batch['b']]))\n"
    "opt = torch.optim.AdamW(model.parameters())\n"
    "for batch in loader:\n    concatenated_forward(model, batch).loss.backward()\n    opt.step()\n"
)


@pytest.mark.parametrize(
    "rest",
    [
        PAIRS + TRAIN.replace("Trainer(", "MyTrainer(", 1),
        CONCATENATED,
        "class RewardCollator:\n    def __call__(self, data):\n        return data\nc = RewardCollator()\n" + TRAIN,
    ],
    ids=["an own loss", "one batch", "a collator"],
)
def test_chosen_and_rejected_are_two_sequences(tmp_path: Path, rest: str) -> None:
    reading = read(tmp_path, f"{HEAD}{LOAD}loader = [{{}}]\n{rest}")
    assert reading.value("training.sequences_per_example") == 2
    assert read(tmp_path, HEAD + LOAD + TRAIN).value("training.sequences_per_example") is None


def test_a_trainer_of_another_library_is_not_that_of_trl(tmp_path: Path) -> None:
    text = "from other.trainer import DPOTrainer, PPOConfig\n" + HEAD + LOAD
    for rest in ("DPOTrainer(model=model).train()\n", "PPOConfig()\n" + TRAIN):
        reading = read(tmp_path, text + rest)
        assert reading.value("other_models") is None
        assert reading.value("training.loss") is None
    own = HEAD.replace("import torch", "import torch\nfrom trl import DPOConfig, DPOTrainer") + LOAD
    loss = "    def concatenated_forward(self, model, batch):\n        return model(batch)\n"
    made = "T(model=model, args=DPOConfig('x', per_device_train_batch_size=1)).train()\n"
    assert read(tmp_path, f"{own}class T(DPOTrainer):\n    pass\n{made}").value("training.loss") == "chunked"
    assert read(tmp_path, f"{own}class T(DPOTrainer):\n{loss}{made}").value("training.loss") != "chunked"


def test_deepspeed_gathers_runs_and_steps(tmp_path: Path) -> None:
    text = (
        f"import deepspeed\n{HEAD}{LOAD}"
        "with deepspeed.zero.GatheredParameters(model.get_input_embeddings().weight, modifier_rank=None):\n    pass\n"
        "reference = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
        "reference, *_ = deepspeed.initialize(model=reference, config={'train_micro_batch_size_per_gpu': 2})\n"
        "model, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={\n"
        "    'optimizer': {'type': 'Adam'}, 'zero_optimization': {'stage': 2}, 'bf16': {'enabled': True}})\n"
        "model.backward(model(**batch).loss)\nmodel.step()\n"
    )
    reading = read(tmp_path, text)
    assert reading.value("parallel.strategy") == "zero2"
    assert "GatheredParameters" not in doubts(reading)
    assert "another model is also trained" not in doubts(reading)
    assert [each.get("role") for each in reading.value("other_models")] == ["reference"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("model.wrap_llm_lora(r=8)\n", "wrap_llm_lora(...) may add, freeze or change modules"),
        ("model.get_model().initialize_vision_modules(1)\n", "initialize_vision_modules(...) may add"),
        (
            "def add_lora(m):\n    m.change(1)\nadd_lora(model)\n",
            "vramtop does not understand how add_lora(...) changes the model",
        ),
        ("model.requires_grad_(False)\n", "as far as vramtop followed the script, all parameters are frozen"),
    ],
)
def test_what_changes_the_model_unseen_is_named(tmp_path: Path, change: str, sentence: str) -> None:
    reading = read(tmp_path, HEAD + LOAD + change + TRAIN)
    assert sentence in doubts(reading)
    assert "optimizer" in {each.component for each in reading.uncertainties}
    assert sentence not in doubts(read(tmp_path, HEAD + LOAD + TRAIN))


def test_a_diffusion_model_is_refused_in_a_sentence(tmp_path: Path) -> None:
    text = "from diffusers import UNet2DConditionModel\nunet = UNet2DConditionModel.from_pretrained('a/b')\n"
    with pytest.raises(InputError, match=r"train.py trains a diffusion model.*build_model --method traced"):
        read(tmp_path, text + "import torch\nopt = torch.optim.AdamW(unet.parameters())\n")


def test_tasks_of_slurm_are_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + LOAD + TRAIN)

    def ranks(*words: str) -> Any:
        reading = read_launch(["srun", *words, "python", "-u", "train.py"], environ={}, cwd=tmp_path)
        return reading.value("parallel.data_replicate") or reading.missing

    assert ranks("-p", "x", "--ntasks=8") == 8
    assert "parallel.data_replicate" in ranks("--nodes", "2", "--ntasks-per-node", "4")


def test_a_module_is_found_in_its_repository_or_said_not_to_be(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "src" / "pack").mkdir(parents=True)
    (tmp_path / "src" / "pack" / "train.py").write_text(
        "from pack.models import load\n" + HEAD + "model = load()\n" + TRAIN
    )
    (tmp_path / "src" / "pack" / "models.py").write_text(f"{HEAD}def load():\n{indented(LOAD)}    return model\n")
    (tmp_path / "examples").mkdir()
    found = read_launch(["python", "-m", "pack.train"], environ={}, cwd=tmp_path / "examples")
    assert found.value("model.id") == "Qwen/Qwen2.5-0.5B"
    lost = read_launch(["python", "-m", "nowhere.train", "--x", "1"], environ={}, cwd=tmp_path)
    assert "The module nowhere.train was not found" in doubts(lost)


def test_a_configuration_that_is_not_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("micro_batch: 3\n")
    text = HEAD + LOAD + TRAIN
    assert "config=run.yaml" not in doubts(read(tmp_path, text))
    assert "vramtop does not read run.yaml on the command line" in doubts(read(tmp_path, text, "config=run.yaml"))
    opened = (
        f"import yaml\nC = yaml.safe_load(open('run.yaml'))\n{text.replace('batch_size=2', 'batch_size=C[chr(0)]')}"
    )
    assert "is not read" not in doubts(read(tmp_path, opened, "--conf", "run.yaml"))


def test_lengths_of_source_and_target_are_one_sequence_of_a_decoder(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + LOAD + TRAIN)
    options = "import argparse\nP = argparse.ArgumentParser()\nP.add_argument('--max_source_length', type=int)\n"
    options += "P.add_argument('--max_target_length', type=int)\nA = P.parse_args()\n"
    reading = read(tmp_path, HEAD + options + LOAD + TRAIN, "--max_source_length", "64", "--max_target_length", "128")
    assert reading.value("training.sequence_length") == 192
    assert "are assumed to form one sequence" in doubts(reading)


def test_deepspeed_s_optimizer_is_taken_and_attention_may_be_patched(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 2}}))
    patch = "def replace_llama_attn_with_flash_attn():\n    pass\nreplace_llama_attn_with_flash_attn()\n"
    arguments = TRAIN.replace("'x', ", "'x', optim='adafactor', deepspeed='ds.json', ")
    reading = read(tmp_path, HEAD + patch + LOAD + arguments)
    assert reading.value("training.optimizer") != "adafactor"
    assert reading.value("model.attention") == "flash_attention_2"


def test_hydra_s_groups_overrides_and_references_are_read(tmp_path: Path) -> None:
    (tmp_path / "config" / "model").mkdir(parents=True)
    (tmp_path / "config" / "config.yaml").write_text(
        "defaults:\n- _self_\n- model: ???\nbatch: 4\nsize: ${batch}\nname: ${model.name}\n"
    )
    (tmp_path / "config" / "model" / "small.yaml").write_text("name: gpt2-medium\ndtype: float32\n")
    text = (
        f"import hydra\n{HEAD}@hydra.main(version_base=None, config_path='config', config_name='config')\n"
        "def main(config):\n"
        "    dtype = getattr(torch, config.model.dtype)\n"
        "    model = AutoModelForCausalLM.from_pretrained(config.name, torch_dtype=dtype)\n"
        f"{indented(TRAIN.replace('batch_size=2', 'batch_size=config.size'))}main()\n"
    )
    reading = read(tmp_path, text, "model=small", "batch=6", "model.dtype=bfloat16")
    assert (reading.value("model.id"), reading.value("training.micro_batch")) == ("gpt2-medium", 6)
    assert reading.value("training.precision") == "bf16"


def test_a_switch_named_deepspeed_does_not_hide_the_script_s_own_configuration(tmp_path: Path) -> None:
    text = (
        f"import argparse, deepspeed\n{HEAD}{LOAD}p = argparse.ArgumentParser()\n"
        "p.add_argument('--zero_stage', type=int, default=0)\nA = p.parse_args()\n"
        "config = {'zero_optimization': {'stage': A.zero_stage}, 'fp16': {'enabled': True}}\n"
        "model, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)\n"
        "model.backward(model(**batch).loss)\n"
    )
    reading = read(tmp_path, text, "--deepspeed", "--zero_stage", "2")
    assert (reading.value("parallel.strategy"), reading.value("training.precision")) == ("zero2", "fp16-mixed")


@pytest.mark.parametrize("name", ["AutoModelForImageClassification", "AutoModelForCTC", "AutoModelForSpeechSeq2Seq"])
def test_images_and_sounds_are_not_asked_for_a_length_of_text(tmp_path: Path, name: str) -> None:
    text = f"from transformers import {name}\n{HEAD}model = {name}.from_pretrained('a/b')\n{TRAIN}"
    assert read(tmp_path, text).missing == ()
    assert read(tmp_path, HEAD + LOAD + TRAIN).missing == ("training.sequence_length",)


def test_a_list_of_layers_may_stand_in_brackets(tmp_path: Path) -> None:
    text = HEAD + LOAD + "import fire\nfrom peft import LoraConfig, get_peft_model\n"
    body = "model2 = get_peft_model(model, LoraConfig(r=8, target_modules=lora_target_modules))\n"
    body += TRAIN.replace("model=model", "model=model2")
    text += f"def main(lora_target_modules: list[str] = ['q_proj']):\n{indented(body)}fire.Fire(main)\n"
    reading = read(tmp_path, text, "--lora_target_modules", "[q_proj,v_proj]")
    assert reading.value("lora.targets") == ["q_proj", "v_proj"]
