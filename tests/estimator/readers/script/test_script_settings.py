from pathlib import Path
from typing import Any

import pytest
from reading import read_script as read

from vramtop.estimator.readers.launch_line import read_launch

PLAIN = """\
import argparse, os, torch
MODEL = "Qwen/Qwen2.5-7B"
LENGTH = 2 * 1024
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--lora-rank", type=int, default=32)

def main():
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained("other/tokenizer")
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16, attn_implementation="flash_attention_2")
    model = get_peft_model(model, LoraConfig(r=args.lora_rank, target_modules=["q_proj", "k_proj"]))
    tokenizer("text", truncation=True, max_length=LENGTH)
    arguments = TrainingArguments(
        output_dir="out", per_device_train_batch_size=args.batch, bf16=True, gradient_checkpointing=True,
        gradient_accumulation_steps=int(os.environ.get("ACCUMULATE", 8)), optim="paged_adamw_8bit",
    )
    Trainer(model=model, args=arguments).train()
"""


def test_an_option_of_a_library_that_is_false_is_false(tmp_path: Path) -> None:
    script = "from transformers import HfArgumentParser, TrainingArguments\n"
    script += "args, = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()\n"
    script += "if args.gradient_checkpointing:\n    raise ValueError\n"
    script += "Trainer(model=AutoModelForCausalLM.from_pretrained('gpt2'), args=args).train()\n"
    assert read(tmp_path, script, "--gradient_checkpointing=False").value("model.id") == "gpt2"
    assert "model.id" in read(tmp_path, script, "--gradient_checkpointing=True").missing


def test_options_and_environment_take_precedence_over_defaults_of_the_script(tmp_path: Path) -> None:
    reading = read(tmp_path, PLAIN, "--batch", "2", "--lora-rank=8", environ={"ACCUMULATE": "3"})
    job = reading.job()
    assert (job.training.micro_batch, job.training.gradient_accumulation) == (2, 3)
    assert job.lora is not None
    assert job.lora.rank == 8
    assert reading.evidence()["training.micro_batch"].startswith("--batch on the command line")


NESTED = """\
import argparse, json, yaml
def load(path):
    with open(path, encoding="utf-8") as file:
        return LOADER(file)
parser = argparse.ArgumentParser()
parser.add_argument("--config", default="x.yaml")
config = load(parser.parse_args().config)
model = AutoModelForCausalLM.from_pretrained(config["model"]["name"])
model = get_peft_model(model, LoraConfig(r=config["lora"]["r"], target_modules=["q_proj"]))
sizes = config["training"]
arguments = TrainingArguments(per_device_train_batch_size=sizes["batch"], optim=sizes.get("optim", "adafactor"))
Trainer(model=model, args=arguments).train()
"""
IN_JSON = '{"model": {"name": "gpt2"}, "lora": {"r": 4}, "training": {"batch": 3}}'


@pytest.mark.parametrize("loader", ["yaml.safe_load", "json.load"])
@pytest.mark.parametrize("words", [(), ("--config", "x.yaml")])
def test_a_file_of_settings_that_the_script_opens(tmp_path: Path, loader: str, words: tuple[str, ...]) -> None:
    (tmp_path / "x.yaml").write_text(IN_JSON)
    reading = read(tmp_path, NESTED.replace("LOADER", loader), *words)
    assert [reading.value(key) for key in ("model.id", "lora.rank", "training.micro_batch")] == ["gpt2", 4, 3]
    assert reading.value("training.optimizer") == "adafactor"
    assert "config['lora']['r']" in reading.evidence()["lora.rank"]
    assert not any("does not read" in each or "lora is off" in each for each in reading.warnings)
    gone = read(tmp_path, NESTED.replace("LOADER", loader), "--config", "gone.yaml")
    assert "model.id" in gone.missing


@pytest.mark.parametrize(
    "opened",
    [
        "yaml.safe_load(Path('conf', 'x.yaml').read_text())",
        "json.load(open(os.path.join('conf', 'x.yaml')))",
        "OmegaConf.to_container(OmegaConf.load('conf/x.yaml'))",
    ],
)
def test_a_file_of_settings_beside_the_script(tmp_path: Path, opened: str) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "x.yaml").write_text(IN_JSON)
    script = NESTED.replace("load(parser.parse_args().config)", opened).replace('config["model"]["name"]', "NAME")
    script = f"from omegaconf import OmegaConf\n{script}" if "OmegaConf" in opened else script
    name = "config.model.name" if "OmegaConf" in opened else 'config["model"]["name"]'
    reading = read(tmp_path, script.replace("NAME", name))
    assert [reading.value(key) for key in ("model.id", "lora.rank", "training.micro_batch")] == ["gpt2", 4, 3]


def test_the_length_of_generated_text_is_none_of_the_training(tmp_path: Path) -> None:
    train = 'Trainer(AutoModelForCausalLM.from_pretrained("gpt2"), TrainingArguments()).train()\n'
    sample = "def sample(model):\n    max_length = 32\n    return model\n"
    assert read(tmp_path, f"max_length = 512\n{train}{sample}").value("training.sequence_length") == 512
    assert "training.sequence_length" in read(tmp_path, train + sample).missing


@pytest.mark.parametrize(
    ("backend", "compiles"),
    [("'eager'", False), ("'inductor'", True), ("own_backend", False), ("'inductor', mode='reduce-overhead'", True)],
)
def test_the_backend_of_torch_compile_decides(tmp_path: Path, backend: str, compiles: bool) -> None:
    script = f"model = AutoModelForCausalLM.from_pretrained('gpt2')\nmodel = torch.compile(model, backend={backend})\n"
    reading = read(tmp_path, f"{script}Trainer(model=model, args=TrainingArguments('o')).train()\n")
    assert reading.value("training.compile") == compiles
    assert any("backend of torch.compile" in each for each in reading.warnings) == (backend == "own_backend")
    assert any("CUDA graphs" in each for each in reading.warnings) == (", mode" in backend)


TRAINER = "trainer = Trainer(model=model, args=TrainingArguments('o'))\n"


@pytest.mark.parametrize(
    ("trained", "compiled", "compiles"),
    [
        ("", "if sys.platform != 'win32':\n    model = torch.compile(model)\n", True),
        (TRAINER, "model = torch.compile(model)\n", False),
        (TRAINER, "if sys.platform != 'win32':\n    model = torch.compile(model)\n", False),
        (TRAINER, "trainer.model = torch.compile(trainer.model)\n", True),
    ],
)
def test_a_trainer_keeps_its_model_whatever_is_compiled_later(
    tmp_path: Path, trained: str, compiled: str, *, compiles: bool
) -> None:
    model = "model = AutoModelForCausalLM.from_pretrained('gpt2')\n"
    reading = read(tmp_path, f"{model}{trained}{compiled}{TRAINER if not trained else ''}trainer.train()\n")
    assert (reading.value("training.compile") or False) == compiles
    assert not any("compile" in each for each in reading.warnings)


def test_values_known_only_at_run_time_stay_unknown(tmp_path: Path) -> None:
    script = "name = pick()\nbatch = 1\nbatch = count()\nTrainingArguments(per_device_train_batch_size=batch)\n"
    reading = read(tmp_path, script + "AutoModelForCausalLM.from_pretrained(name)\n")
    assert "model.id" in reading.missing
    assert "training.micro_batch" in reading.missing


def test_the_last_value_of_a_name_counts(tmp_path: Path) -> None:
    script = "batch = 1\nbatch = 2\nTrainingArguments(per_device_train_batch_size=batch)\nbatch = 3\n"
    assert read(tmp_path, script).value("training.micro_batch") == 2


def test_a_constant_that_refers_to_itself_is_not_followed_forever(tmp_path: Path) -> None:
    reading = read(tmp_path, "SIZE = SIZE\nTrainingArguments(per_device_train_batch_size=SIZE)\n")
    assert "model.id" in reading.missing


def test_defaults_of_unsloth(tmp_path: Path) -> None:
    script = """\
from unsloth import FastModel
model, tokenizer = FastModel.from_pretrained("unsloth/Qwen3-8B-unsloth-bnb-4bit", max_seq_length=512)
model = FastModel.get_peft_model(model)
SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2, output_dir="out")).train()
"""
    reading = read(tmp_path, script)
    job = reading.job()
    assert (job.training.loss, job.training.activation_checkpointing) == ("unsloth", "full")
    assert job.training.activation_offload
    assert job.lora is not None
    assert (job.lora.rank, job.lora.targets, job.lora.quantization) == (16, "all-linear", "nf4-double")
    unwritten = {finding.key for finding in reading.findings if not finding.written}
    assert {"lora.rank", "lora.targets", "lora.quantization", "training.loss"} <= unwritten
    assert job.unsure.weights == "more"  # some layers of this copy have 16 bits
    assert read(tmp_path, script.replace("-unsloth-bnb-4bit", "")).job().unsure.weights == "no"
    full = read(tmp_path, script.replace("max_seq_length=512", "max_seq_length=512, full_finetuning=True"))
    assert full.value("lora.quantization") is None


@pytest.mark.parametrize(
    ("first", "method", "found", "doubted"),
    [
        ("unsloth", "SFT", (512, 4, "adamw-8bit", 2), False),
        ("unsloth", "DPO", (512, 4, "adamw-8bit", 2), True),  # its length is TRL's in older versions
        ("trl", "SFT", (1024, 8, "adamw", 1), False),
        ("trl", "DPO", (1024, 8, "adamw", 1), False),
    ],
)
def test_unsloth_replaces_what_is_imported_after_it(
    tmp_path: Path, first: str, method: str, found: tuple[Any, ...], *, doubted: bool
) -> None:
    lines = ["from unsloth import FastModel\n", f"from trl import {method}Config, {method}Trainer\n"]
    text = "model, _ = FastModel.from_pretrained('org/model', max_seq_length=512)\n"
    text += f"{method}Trainer(model=model, args={method}Config('out')).train()\n"
    (tmp_path / "train.py").write_text("".join(lines if first == "unsloth" else lines[::-1]) + text)
    versions = {"transformers": "4.55.4", "trl": "0.22.2", "torch": "2.7"}
    reading = read_launch(["python", "train.py"], environ={}, cwd=tmp_path, versions=versions)
    keys = ("training.sequence_length", "training.micro_batch", "training.optimizer", "training.gradient_accumulation")
    assert tuple(map(reading.value, keys)) == found
    assert any("until 2025.5" in each for each in reading.warnings) == doubted


def test_an_unsloth_script(tmp_path: Path) -> None:
    reading = read(
        tmp_path,
        """
from unsloth import FastLanguageModel
from trl import SFTTrainer
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="unsloth/Meta-Llama-3.1-8B", max_seq_length=4096, dtype=None, load_in_4bit=True
)
model = FastLanguageModel.get_peft_model(
    model, r=32, target_modules=["q_proj"], use_gradient_checkpointing="unsloth"
)
SFTTrainer(model=model, args=TrainingArguments(
    per_device_train_batch_size=2, fp16=not is_bfloat16_supported(), bf16=is_bfloat16_supported()
))
""",
    )
    job = reading.job()
    assert (job.model.id, job.training.sequence_length) == ("unsloth/Meta-Llama-3.1-8B", 4096)
    assert job.lora is not None
    assert (job.lora.rank, job.lora.targets, job.lora.quantization) == (32, ["q_proj"], "nf4-double")
    assert job.training.activation_checkpointing == "full"
    assert reading.evidence()["training.precision"].startswith("train.py line 11: TrainingArguments(bf16=")


def test_values_known_only_at_run_time_are_reported(tmp_path: Path) -> None:
    reading = read(
        tmp_path,
        """
args = TrainingArguments(bf16=config.bf16, optim=OptimizerNames.PAGED_ADAMW_8BIT, logging_steps=config.steps)
how = "flash_attention_2" if torch.cuda.is_available() else "sdpa"
AutoModelForCausalLM.from_pretrained("gpt2", attn_implementation=how)
""",
    )
    (warning,) = reading.warnings
    assert warning.startswith("train.py line 2: TrainingArguments(bf16=config.bf16) is only known when the script runs")
    assert (reading.value("training.optimizer"), reading.value("model.attention")) == (
        "paged-adamw-8bit",
        "flash_attention_2",
    )


@pytest.mark.parametrize(("arguments", "expected"), [((), ("bf16", "none", 8)), (("--fp32",), ("fp32", "full", 4))])
def test_options_without_a_default_and_the_choices_that_depend_on_them(
    tmp_path: Path, arguments: tuple[str, ...], expected: tuple[str, str, int]
) -> None:
    script = (
        "parser.add_argument('--fp32', action='store_true')\nparser.add_argument('--kind', default='bfloat16')\n"
        "parser.add_argument('--attention')\nparser.add_argument('--batch', type=int, default=4)\n"
        "args = parser.parse_args()\nkind = 'float32' if args.fp32 else args.kind\n"
        "dtype = kind if kind in ('auto', None) else getattr(torch, kind)\n"
        "LlamaForCausalLM.from_pretrained('x', dtype=dtype, attn_implementation=args.attention or None)\n"
        "TrainingArguments(gradient_checkpointing=args.fp32, per_device_train_batch_size=args.batch * (1 if args.fp32 "
        "else 2), bf16=not args.fp32)\nSEQ_LEN = 96\n"
    )
    reading = read(tmp_path, script, *arguments)
    job = reading.job()
    training = job.training
    assert (training.precision, training.activation_checkpointing, training.micro_batch) == expected
    assert reading.evidence()["training.sequence_length"] == "train.py line 10: SEQ_LEN"
    assert reading.warnings == ()


def test_arguments_given_as_a_dictionary(tmp_path: Path) -> None:
    table = "settings = dict(per_device_train_batch_size=3, optim='sgd')\nTrainingArguments(**TABLE, bf16=True)\n"
    reading = read(tmp_path, table.replace("TABLE", "{'per_device_train_batch_size': 3, 'optim': 'sgd'}"))
    assert (reading.value("training.micro_batch"), reading.value("training.optimizer")) == (3, "sgd")
    reading = read(tmp_path, table.replace("TABLE", "settings"))
    assert (reading.value("training.micro_batch"), reading.value("training.optimizer")) == (3, "sgd")
    reading = read(tmp_path, table.replace("TABLE", "json.load(file)"))
    assert "training.micro_batch" in reading.missing
    assert reading.warnings[0].startswith("train.py line 2: TrainingArguments(**json.load(file)) is only known when")


def test_replicas_and_autocast_of_a_custom_training_loop(tmp_path: Path) -> None:
    loop = "model = DDP(model)\nwith torch.autocast('cuda', torch.bfloat16):\n    loss = model(x).loss\n"
    (tmp_path / "train.py").write_text(f"LlamaForCausalLM(LlamaConfig())\n{loop}")
    ranks = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    job = read_launch(["python", "train.py"], environ=ranks, cwd=tmp_path).job()
    assert (job.parallel.strategy, job.parallel.data_shard, job.parallel.data_replicate) == ("ddp", 1, 4)
    assert job.training.precision == "bf16-mixed"


def test_autocast_beside_a_trainer_is_ignored(tmp_path: Path) -> None:
    script = "LlamaForCausalLM(LlamaConfig())\nTrainer(args=TrainingArguments()).train()\nwith autocast('cuda'): pass\n"
    assert read(tmp_path, script).value("training.precision") == "fp32"


def test_number_of_labels(tmp_path: Path) -> None:
    script = """\
model = AutoModelForSequenceClassification.from_pretrained("google-bert/bert-base-uncased", num_labels=5)
Trainer(model=model, args=TrainingArguments()).train()
"""
    job = read(tmp_path, script).job()
    assert (job.model.id, job.model.task) == ("google-bert/bert-base-uncased", "sequence-classification")
    assert job.model.num_labels == 5
    assert job.model.config is None


def test_arguments_of_the_accelerator_and_of_its_launcher(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        'accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)\n'
        'model = AutoModelForCausalLM.from_pretrained("gpt2")\n'
        "model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))\n"
    )
    line = "accelerate launch --mixed_precision fp16 --gradient_accumulation_steps 4 train.py"
    job = read_launch(line.split(), environ={}, cwd=tmp_path).job()
    assert job.training.precision == "bf16-mixed"
    assert job.training.gradient_accumulation == 4
