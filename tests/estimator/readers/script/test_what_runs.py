"""What a script really runs: where it goes on, and how many sequences an example puts into a batch."""

from pathlib import Path
from typing import get_args

import pytest
from reading import read_script as read

from vramtop.estimator.readers.source.evidence import Component, JobReading

HEAD = """
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
"""
LOAD = "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B', dtype=torch.bfloat16)\n"
ARGUMENTS = "TrainingArguments('x', per_device_train_batch_size=3, bf16=True)"
TRAIN = f"Trainer(model=model, args={ARGUMENTS}, data_collator=collate).train()\n"
SEQUENCES = "training.sequences_per_example"


def warned(reading: JobReading, words: str) -> bool:
    return any(words in sentence for sentence in reading.warnings)


LOOKS = """
PEAKS = {'a100': 312, 'h100': 989}
def look(name):
    for key in PEAKS:
        if key in name:
            return PEAKS[key]
    raise ValueError(name)
peak = look(torch.cuda.get_device_name(0).lower())
"""


def test_an_error_after_a_return_that_may_have_happened_ends_no_script(tmp_path: Path) -> None:
    rest = "torch.optim.SGD(model.parameters(), lr=0.1).step()\n"
    reading = read(tmp_path, HEAD + LOAD + LOOKS + rest)
    assert reading.value("training.optimizer") == "sgd"
    assert not warned(reading, "it fails before training")


COLLATOR = """
class Collator:
    def __call__(self, features):
        {body}
        return tokenizer.pad(flat)
collate = Collator()
"""
EXTENDS = "flat = []\n        for f in features:\n            flat.extend(f[1])"
SUMS = "flat = [f[1] for f in features]\n        flat = sum(flat, [])"


@pytest.mark.parametrize("body", [EXTENDS, SUMS])
def test_several_sequences_of_an_example_are_in_doubt(tmp_path: Path, body: str) -> None:
    text = HEAD + LOAD + COLLATOR.format(body=body) + TRAIN
    reading = read(tmp_path, text)
    assert SEQUENCES in reading.missing
    assert warned(reading, "vramtop does not follow how many sequences it puts into a batch")


def test_objects_of_the_script_are_followed(tmp_path: Path) -> None:
    own = """
class Run:
    batch = 3
    def __init__(self, name, precise):
        self.model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16)
        self.batch, self.precise = 2, precise
    def double(self):
        self.batch = 2 * self.batch
    def train(self):
        self.double()
        args = TrainingArguments("x", per_device_train_batch_size=self.batch, bf16=self.precise)
        Trainer(model=self.model, args=args).train()
Run("Qwen/Qwen2.5-0.5B", True).train()
"""
    reading = read(tmp_path, HEAD + own)
    assert warned(read(tmp_path, HEAD + own.replace("Run(", "Run.made(")), "Run.made(...) is not followed")
    assert (reading.value("model.id"), reading.value("training.micro_batch")) == ("Qwen/Qwen2.5-0.5B", 4)
    assert reading.value("training.precision") == "bf16"
    assert not reading.uncertainties


@pytest.mark.parametrize(
    ("method", "doubted"),
    [
        ("_save", set()),
        ("create_optimizer", {"optimizer"}),
        ("get_train_dataloader", {"activations", "logits"}),
        ("prediction_step", set()),
        ("training_step", {*get_args(Component)}),
    ],
)
def test_what_a_trainer_of_its_own_hands_to_its_base_counts(tmp_path: Path, method: str, doubted: set[str]) -> None:
    own = f"""
from peft import LoraConfig
from trl import SFTTrainer
class Run(SFTTrainer):
    def {method}(self, inputs):
        pass
peft_config = LoraConfig(r=8, target_modules=['q_proj'])
Run(model='Qwen/Qwen2.5-0.5B', args={ARGUMENTS}, peft_config=peft_config).train()
"""
    reading = read(tmp_path, HEAD + own)
    assert (reading.value("model.id"), reading.value("lora.rank")) == ("Qwen/Qwen2.5-0.5B", 8)
    assert warned(reading, f"Run.{method} is not read") is bool(doubted)
    assert {each.component for each in reading.uncertainties} == doubted


def test_what_a_constructor_of_its_own_gives_to_a_trainer_is_not_known(tmp_path: Path) -> None:
    own = """
class Run(Trainer):
    def __init__(self, name):
        super().__init__(name, None)
Run('Qwen/Qwen2.5-0.5B').train()
"""
    reading = read(tmp_path, HEAD + own)
    assert warned(reading, "the arguments of Trainer(...) are not known")
    assert {"model.id", "training.micro_batch"} <= {*reading.missing}


@pytest.mark.parametrize(("cut", "is_open"), [("args.data_size", True), ("args.max_length", False)])
def test_a_default_of_another_length_than_a_call_cuts_to_is_in_doubt(tmp_path: Path, cut: str, is_open: bool) -> None:
    text = f"""
import argparse
from transformers import AutoTokenizer
parser = argparse.ArgumentParser()
parser.add_argument('--data_size', type=int, default=1024)
parser.add_argument('--max_length', type=int, default=20, help='of what is generated')
args = parser.parse_args()
tokenizer = AutoTokenizer.from_pretrained('Qwen/Qwen2.5-0.5B')
tokens = tokenizer.encode('text', truncation=True, max_length={cut})
model.generate(max_length=4096)
"""
    reading = read(tmp_path, HEAD + LOAD + text + TRAIN)
    assert reading.value("training.sequence_length") == (1024 if is_open else 20)
    assert warned(reading, "max_length of a call=1024") is is_open
    given = read(tmp_path, HEAD + LOAD + text + TRAIN, "--max_length", "64")
    assert given.value("training.sequence_length") == 64


@pytest.mark.parametrize(("number", "ranks"), [("4", 4), ("torch.cuda.device_count()", None)])
@pytest.mark.parametrize(
    ("wrap", "key"), [("FSDP(model)", "parallel.data_shard"), ("DDP(model)", "parallel.data_replicate")]
)
def test_processes_that_the_script_starts_are_ranks(
    tmp_path: Path, number: str, ranks: int | None, wrap: str, key: str
) -> None:
    own = f"""
import torch.multiprocessing as mp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP
def worker(rank, name):
    model = AutoModelForCausalLM.from_pretrained(name)
    model = {wrap}
    torch.optim.SGD(model.parameters(), lr=0.1).step()
mp.spawn(worker, args=('Qwen/Qwen2.5-0.5B',), nprocs={number})
"""
    reading = read(tmp_path, HEAD + own)
    assert reading.value(key) == ranks
    assert (key in reading.missing) is (ranks is None)


def test_data_that_a_table_hands_to_a_trainer_leave_its_arguments_known(tmp_path: Path) -> None:
    text = HEAD + LOAD + TRAIN.replace("Trainer(", "Trainer(**elsewhere.data(), ") + "model.eval()\n"
    reading = read(tmp_path, "import elsewhere\n" + text)
    assert reading.value("training.micro_batch") == read(tmp_path, HEAD + LOAD + TRAIN).value("training.micro_batch")
    assert {each.component for each in reading.uncertainties}
    assert warned(reading, "vramtop does not follow how batches are made")


def test_options_beside_the_words_that_a_parser_leaves_over(tmp_path: Path) -> None:
    parse = """
import argparse
from dataclasses import dataclass
from transformers import HfArgumentParser
@dataclass
class Own:
    bits: int = 4
own, given, rest = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses(return_remaining_strings=True)
args = argparse.Namespace(**vars(own), **vars(given))
model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B', dtype=torch.bfloat16 if args.bits == 4 else 'auto')
Trainer(model=model, args=given).train()
"""
    assert read(tmp_path, HEAD + parse, "--bits", "4", "--output_dir", "x").value("training.precision") == "bf16"


def test_training_on_both_sides_of_a_condition_is_reached(tmp_path: Path) -> None:
    either = "trainer.train(resume_from_checkpoint=True)\nelse:\n    trainer.train()\n"
    made = TRAIN.replace(".train()", "").replace("Trainer(", "trainer = Trainer(", 1)
    reading = read(tmp_path, f"import elsewhere\n{HEAD}{LOAD}{made}\nif elsewhere.found():\n    {either}")
    assert not warned(reading, "did not reach the training")


OPTIONS = "import argparse\nP = argparse.ArgumentParser()\nP.add_argument('--max_source_length', type=int)\n"


@pytest.mark.parametrize("cut", ["tokenizer(text, max_length=768)", "DPO"])
def test_an_option_is_no_length_where_the_script_cuts_to_another(tmp_path: Path, cut: str) -> None:
    text = HEAD + OPTIONS + "A = P.parse_args()\n" + LOAD
    if cut == "DPO":
        text += "from trl import *\nmost = A.max_source_length + 640\n"
        text += "DPOTrainer(model, args=DPOConfig('o', max_length=most)).train()\n"
    else:
        text += f"{cut}\n{TRAIN.replace(', data_collator=collate', '')}"
    assert read(tmp_path, text, "--max_source_length", "128").value("training.sequence_length") == 768


def test_a_cast_of_each_parameters_data_is_named(tmp_path: Path) -> None:
    cast = "for p in model.parameters():\n    p.data = p.data.to(torch.float32)\n"
    reading = read(tmp_path, HEAD + LOAD + cast + TRAIN.replace(", data_collator=collate", ""))
    assert warned(reading, "only part of the model is converted")


BRANCHES = (
    HEAD
    + LOAD
    + """
import argparse
P = argparse.ArgumentParser()
P.add_argument('--how', default='plain')
A = P.parse_args()
setattr(A, 'max_length', 512)
def adapted(model):
    from peft import LoraConfig, get_peft_model
    return get_peft_model(model, LoraConfig(r=4, target_modules=['q_proj']))
def run(model):
    if 'lora' in A.how.replace('-', '_'):
        model = adapted(model)
    tokenizer(text, max_length=A.max_length)
    Trainer(model=model, args=ARGUMENTS).train()
run(model)
""".replace("ARGUMENTS", ARGUMENTS)
)


def test_what_only_a_branch_that_is_not_taken_calls_does_not_run(tmp_path: Path) -> None:
    plain, adapted = (read(tmp_path, BRANCHES, "--how", how) for how in ("plain", "with-lora"))
    assert (plain.value("lora.rank"), adapted.value("lora.rank")) == (None, 4)
    assert plain.value("training.sequence_length") == adapted.value("training.sequence_length") == 512
    assert not plain.uncertainties
    assert not adapted.uncertainties


def test_a_compiled_model_that_the_trainer_has_already(tmp_path: Path) -> None:
    train = TRAIN.replace(", data_collator=collate", "").replace("Trainer(", "trainer = Trainer(", 1)
    condition = "if torch.__version__ >= '2':\n    model = torch.compile(model)\n"
    reading = read(tmp_path, HEAD + LOAD + train.replace(".train()", f"\n{condition}trainer.train()"))
    assert not reading.uncertainties


def test_adapters_are_attached_where_the_model_has_none(tmp_path: Path) -> None:
    adapters = "from peft import *\nif not isinstance(model, PeftModel):\n"
    adapters += "    model = get_peft_model(model, LoraConfig(r=4, target_modules=['q_proj']))\n"
    reading = read(tmp_path, HEAD + LOAD + adapters + TRAIN.replace(", data_collator=collate", ""))
    assert reading.value("lora.rank") == 4
    assert not reading.uncertainties
