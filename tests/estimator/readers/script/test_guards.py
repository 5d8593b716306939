"""Programs as they are started: which branches they take, what they open, and what is said of what is not followed."""

import json
from pathlib import Path

import pytest
from reading import read_script as read

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

LOAD = "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
HEAD = "import torch\nfrom transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments\n"
ADAPT = "from peft import LoraConfig, get_peft_model\nmodel = get_peft_model(model, LoraConfig(r=A.lora_r))\n"
TRAIN = "Trainer(model=model, args=TrainingArguments('x', per_device_train_batch_size=2)).train()\n"


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
    early = text.replace(f"if A.lora_enable:\n{indented(ADAPT)}", "")
    helper = (
        f"def adapted(model):\n    if not A.lora_enable:\n        return model\n{indented(ADAPT)}    return model\n"
    )
    early = early.replace(TRAIN, f"{helper}model = adapted(model)\n{TRAIN}")
    assert read(tmp_path, early, *on).value("lora.rank") == 8
    assert read(tmp_path, early).value("lora.rank") is None


UNDECIDED = HEAD + "import elsewhere\nA = elsewhere.settings()\n" + LOAD
BOTH = (
    "if A.long:\n    args = TrainingArguments('x', per_device_train_batch_size=64)\n"
    "else:\n    args = TrainingArguments('x', per_device_train_batch_size=1, gradient_checkpointing=True)\n"
    "Trainer(model=model, args=args).train()\n"
)
"""Checkpointing and the batch in one branch."""


def test_sizes_under_a_condition_that_cannot_be_decided_are_asked_for(tmp_path: Path) -> None:
    reading = read(tmp_path, UNDECIDED + BOTH)
    assert "training.micro_batch" in reading.missing
    assert "known only at run time (if A.long)" in doubts(reading)
    size = "size = 4\nif A.big:\n    size = 64\n" + TRAIN.replace("batch_size=2", "batch_size=size")
    assert "training.micro_batch" in read(tmp_path, UNDECIDED + size).missing


def test_adapters_under_a_condition_that_cannot_be_decided_are_named(tmp_path: Path) -> None:
    reading = read(tmp_path, f"{UNDECIDED}if A.lora:\n{indented(ADAPT)}{TRAIN}")
    assert reading.value("lora.rank") is None
    assert "known only at run time (if A.lora)" in doubts(reading)
    assert {each.component for each in reading.uncertainties} >= {"gradients", "optimizer", "activations"}


def test_a_model_under_a_condition_that_cannot_be_decided_is_asked_for(tmp_path: Path) -> None:
    other = "if A.other:\n    model = AutoModelForCausalLM.from_pretrained('org/another')\n"
    assert "model.id" in read(tmp_path, UNDECIDED + other + TRAIN).missing


def test_what_is_in_a_function_that_nothing_calls_is_named_unless_nothing_names_it(tmp_path: Path) -> None:
    helper = f"def adapted(model):\n{indented(ADAPT)}    return model\n"
    sentence = "adapted() is not called from the top of the script"
    for use in ("hooks = {'adapt': adapted}\n", "job = Job(hook='adapted')\n"):
        assert sentence in doubts(read(tmp_path, HEAD + LOAD + helper + use + TRAIN))
    assert sentence not in doubts(read(tmp_path, HEAD + LOAD + helper + TRAIN))
    (tmp_path / "pkg.py").write_text(f"{HEAD}{helper}")
    assert sentence not in doubts(read(tmp_path, f"import pkg\n{HEAD}{LOAD}{TRAIN}"))


@pytest.mark.parametrize(
    ("line", "splits"), [("0,1,2 python", True), ("1 python", False), ("0,1 torchrun --nproc_per_node 2", False)]
)
@pytest.mark.parametrize("load", [LOAD, LOAD.replace("')", "', device_map='auto')")])
def test_one_process_that_sees_several_gpus_splits_its_batches(
    tmp_path: Path, line: str, splits: bool, load: str
) -> None:
    (tmp_path / "train.py").write_text(HEAD + load + TRAIN)
    reading = read_launch(["env", *f"CUDA_VISIBLE_DEVICES={line} train.py".split()], environ={}, cwd=tmp_path)
    assert ("nn.DataParallel" in doubts(reading)) == (splits and load == LOAD)


def test_data_parallel_of_a_script_is_doubted(tmp_path: Path) -> None:
    loop = "model = torch.nn.DataParallel(model).cuda()\ntorch.optim.AdamW(model.parameters()).step()\n"
    assert "DataParallel splits each batch" in doubts(read(tmp_path, HEAD + LOAD + loop))


def test_a_file_that_the_script_parses_has_its_settings(tmp_path: Path) -> None:
    settings = {
        "per_device_train_batch_size": 3,
        "gradient_checkpointing": True,
        "output_dir": "x",
        "lora_enable": True,
    }
    (tmp_path / "args.json").write_text(json.dumps(settings))
    text = (
        f"{HEAD}{DATACLASS.splitlines()[0]}\n@dataclass\nclass A:\n    lora_enable: bool = False\n"
        "    lora_r: int = 8\nimport os, sys\nparser = HfArgumentParser((A, TrainingArguments))\n"
        "if len(sys.argv) == 2 and sys.argv[1].endswith('.json'):\n"
        "    A, args = parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))\n"
        "else:\n    A, args = parser.parse_json_file(json_file='none.json')\n"
        f"{LOAD}if A.lora_enable:\n{indented(ADAPT)}Trainer(model=model, args=args).train()\n"
    )
    reading = read(tmp_path, text, "args.json")
    assert (reading.value("training.micro_batch"), reading.value("lora.rank")) == (3, 8)
    assert reading.value("training.activation_checkpointing") == "full"
    assert "args.json" in reading.evidence()["training.micro_batch"]
    assert "does not follow where parse_json_file(...) gets its options" in doubts(read(tmp_path, text))


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
    beside = read(tmp_path, HEAD + LOAD + TRAIN, beside_python={"transformers": "5.1.0"})
    assert beside.value("software.transformers") == (version or "5.1.0")
    assert ("Python of the launch line has 5.1.0" in " ".join(beside.warnings)) == (version is not None)


def test_a_version_counts_rather_than_a_bound_of_another_list_beside_it(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("transformers>=4.32.0,<4.38.0\n")
    (tmp_path / "environment.yml").write_text("dependencies:\n  - pip:\n    - transformers==4.52.4\n")
    assert read(tmp_path, HEAD + LOAD + TRAIN).value("software.transformers") == "4.52.4"


@pytest.mark.parametrize(
    ("line", "installed", "counted"),
    [
        ("transformers<5.0", "4.51.3", "4.51.3"),  # it satisfies the bound
        ("transformers==4.44.0", "4.44.2", "4.44.2"),
        ("transformers==4.44.0", "4.40.0", "4.44.0"),
        ("", "4.51.3", "4.51.3"),
    ],
)
def test_what_is_installed_for_the_python_of_the_line_counts_where_the_program_asks_for_no_other(
    tmp_path: Path, line: str, installed: str, counted: str
) -> None:
    (tmp_path / "requirements.txt").write_text(line)
    reading = read(tmp_path, HEAD + LOAD + TRAIN, beside_python={"transformers": installed})
    assert reading.value("software.transformers") == counted


def test_a_trainer_of_another_library_is_not_that_of_trl(tmp_path: Path) -> None:
    text = "from other.trainer import DPOTrainer, PPOConfig\n" + HEAD + LOAD
    for rest in ("DPOTrainer(model=model).train()\n", "PPOConfig()\n" + TRAIN):
        reading = read(tmp_path, text + rest)
        assert reading.value("other_models") is None
        assert reading.value("training.loss") is None
    own = HEAD.replace("import torch", "import torch\nfrom trl import DPOConfig, DPOTrainer") + LOAD
    loss = "    def concatenated_forward(self, model, batch):\n        return model(batch)\n"
    made = "T(model=model, args=DPOConfig('x', per_device_train_batch_size=1)).train()\n"
    newest = {"trl": "1.16"}
    for body, is_chunked in (("    pass\n", True), (loss, False)):
        reading = read(tmp_path, f"{own}class T(DPOTrainer):\n{body}{made}", versions=newest)
        assert (reading.value("training.loss") == "chunked") is is_chunked


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
    assert "another model besides the trained one is not counted" in doubts(reading)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("model.wrap_llm_lora(r=8)\n", "wrap_llm_lora(...) may change the model"),
        ("model.get_model().initialize_vision_modules(1)\n", "initialize_vision_modules(...) may change"),
        ("model.requires_grad_(False)\n", "which parameters train is not read; all are counted"),
    ],
)
def test_what_changes_the_model_unseen_is_named(tmp_path: Path, change: str, sentence: str) -> None:
    reading = read(tmp_path, HEAD + LOAD + change + TRAIN)
    assert sentence in doubts(reading)
    assert "optimizer" in {each.component for each in reading.uncertainties}
    assert sentence not in doubts(read(tmp_path, HEAD + LOAD + TRAIN))


def test_a_diffusion_model_is_refused_in_a_sentence(tmp_path: Path) -> None:
    text = "from diffusers import UNet2DConditionModel\nunet = UNet2DConditionModel.from_pretrained('a/b')\n"
    with pytest.raises(CannotTellError, match=r"train.py trains a diffusion model.*build_model --method traced"):
        read(tmp_path, text + "import torch\nopt = torch.optim.AdamW(unet.parameters())\n")


def test_a_program_without_torch_is_refused_in_a_sentence(tmp_path: Path) -> None:
    text = "import jax\nimport optax\nstate = optax.adamw(1e-4).init(jax.numpy.ones(4))\n"
    with pytest.raises(InputError, match=r"train.py trains with jax; vramtop predicts and rehearses programs of torch"):
        read(tmp_path, text)
    assert read(tmp_path, "import jax\n" + HEAD + LOAD + TRAIN).findings


def test_a_configuration_that_is_not_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("micro_batch: 3\n")
    text = HEAD + LOAD + TRAIN
    assert "config=run.yaml" not in doubts(read(tmp_path, text))
    assert "vramtop does not read run.yaml on the command line" in doubts(read(tmp_path, text, "config=run.yaml"))
    opened = (
        f"import yaml\nC = yaml.safe_load(open('run.yaml'))\n{text.replace('batch_size=2', 'batch_size=C[chr(0)]')}"
    )
    assert "is not read" not in doubts(read(tmp_path, opened, "--conf", "run.yaml"))


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


def test_what_follows_an_early_return_is_not_the_only_value(tmp_path: Path) -> None:
    text = HEAD + LOAD + "import os\nfrom peft import LoraConfig, get_peft_model\nclass Arguments:\n    names = None\n"
    text += (
        "def pick(given):\n    if os.path.exists('x.yml'):\n        given.names = ['q_proj', 'v_proj']\n"
        "        RETURN\n    given.names = ['k_proj']\n"
        "given = Arguments()\ngiven.names = ['q_proj']\npick(given)\n"
        "model = get_peft_model(model, LoraConfig(r=8, target_modules=given.names))\n"
    )
    reading = read(tmp_path, text.replace("RETURN", "return") + TRAIN)
    assert reading.value("lora.targets") != ["k_proj"]
    assert any("target_modules" in each for each in reading.warnings)
    assert read(tmp_path, text.replace("RETURN", "pass") + TRAIN).value("lora.targets") == ["k_proj"]


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
    for words in ("[q_proj,v_proj]", '["q_proj", "v_proj"]'):
        assert read(tmp_path, text, "--lora_target_modules", words).value("lora.targets") == ["q_proj", "v_proj"]


def test_a_config_of_trl_given_to_a_plain_trainer_makes_no_pairs(tmp_path: Path) -> None:
    text = HEAD + LOAD + "from trl import RewardConfig, RewardTrainer\n"
    args = "args=RewardConfig('x', per_device_train_batch_size=2, max_length=512)).train()\n"
    plain = read(tmp_path, f"{text}Trainer(model=model, {args}")
    pairs = read(tmp_path, f"{text}RewardTrainer(model=model, {args}")
    assert plain.job().training.sequences_per_example == 1
    assert "given a RewardConfig, whose own defaults are not counted" in doubts(plain)
    assert pairs.job().training.sequences_per_example == 2


@pytest.mark.parametrize(("kind", "warns"), [("CausalLM", True), ("SequenceClassification", False)])
def test_logits_of_an_evaluation_matter_over_words_alone(tmp_path: Path, kind: str, warns: bool) -> None:
    head, load = (each.replace("CausalLM", kind) for each in (HEAD, LOAD))
    train = TRAIN.replace("=2)", "=2, eval_strategy='steps')").replace("))", "), compute_metrics=score)")
    assert ("logits of the whole validation set" in doubts(read(tmp_path, head + load + train))) == warns


BOOLEAN = """import argparse
from peft import LoraConfig, get_peft_model
p = argparse.ArgumentParser()
p.add_argument("--use_lora", type=bool, default=True)
p.add_argument("--fp16", type=bool, default=False)
A = p.parse_args()
if A.use_lora:
    model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj"]))
"""


def test_argparse_makes_any_text_true(tmp_path: Path) -> None:
    train = TRAIN.replace("=2", "=2, fp16=A.fp16")
    reading = read(tmp_path, HEAD + LOAD + BOOLEAN + train, "--use_lora", "False", "--fp16", "False")
    assert (reading.value("lora.rank"), reading.value("training.precision")) == (16, "bf16")
    assert any("which type=bool makes true" in finding.origin for finding in reading.findings)


def test_functions_of_trl_and_unsloth_that_change_no_memory_are_no_doubt(tmp_path: Path) -> None:
    imports = "from trl import get_kbit_device_map\nfrom unsloth.chat_templates import train_on_responses_only\n"
    load = LOAD.replace("')", "', device_map=get_kbit_device_map())")
    title = "from setproctitle import setproctitle\nsetproctitle('mine')\n"
    train = (
        f"trainer = {TRAIN.replace('.train()', '')}trainer = train_on_responses_only(trainer, 'a')\ntrainer.train()\n"
    )
    text = HEAD + imports + load + title + train
    assert read(tmp_path, text).left_open == ()


FLAGS = """import argparse
p = argparse.ArgumentParser()
p.add_argument("--optim", default="adamw_torch")
p.add_argument("--batch_size", type=int, default=64)
p.add_argument("--micro", type=int, default=2)
p.add_argument("--load_in_4bit", action="store_true")
p.add_argument("--attn_implementation", default="sdpa")
A = p.parse_args()
"""


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        (("--optim", "adafactor"), "training.optimizer", "adamw-fused"),
        (("--load_in_4bit",), "lora.quantization", None),
        (("--attn_implementation", "eager"), "model.attention", "sdpa"),
    ],
)
def test_a_flag_that_the_script_gives_to_nothing_does_not_count(
    tmp_path: Path, flags: tuple[str, ...], key: str, value: object
) -> None:
    reading = read(tmp_path, HEAD + FLAGS + LOAD + TRAIN, *flags)
    assert reading.value(key) == value


def test_a_flag_that_the_script_computes_with_counts_by_what_it_makes(tmp_path: Path) -> None:
    train = TRAIN.replace("=2", "=A.micro, gradient_accumulation_steps=A.batch_size // A.micro, optim=A.optim")
    reading = read(tmp_path, HEAD + FLAGS + LOAD + train, "--batch_size", "32", "--optim", "adafactor")
    assert (reading.value("training.micro_batch"), reading.value("training.gradient_accumulation")) == (2, 16)
    assert reading.value("training.optimizer") == "adafactor"
    assert "does not read" not in doubts(reading)


def test_a_trainer_in_another_file_may_set_the_batch(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class MyTrainer: no Python")
    text = HEAD + LOAD + "from mine import MyTrainer\nMyTrainer(model).train()\n"
    assert "training.micro_batch" in read(tmp_path, text).missing
    loader = "from torch.utils.data import DataLoader\nloader = DataLoader([1], batch_size=4)\n"
    assert read(tmp_path, loader + text).value("training.micro_batch") == 4
