"""Forms that public training scripts often have, read as they run or named as not known."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from reading import read_script

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import Component, JobReading

LIBRARIES = """\
import argparse
import datasets
import nltk
import torch
import transformers
from peft import AutoPeftModelForCausalLM, LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, Trainer, TrainingArguments
from trl import DPOTrainer, SFTConfig, SFTTrainer, TrlParser
"""
LOAD = 'model = AutoModelForCausalLM.from_pretrained("gpt2")\ntokenizer = AutoTokenizer.from_pretrained("gpt2")\n'
ARGUMENTS = 'args = TrainingArguments("out", per_device_train_batch_size=2)\n'
CUT = "data = data.map(lambda each: tokenizer(each['text'], truncation=True, max_length={}))\n"
TRAIN = "Trainer(model=model, args=args, train_dataset=data).train()\n"
LIBRARIES_OF_TWO = "from trl import DPOConfig\n"
NEW = {"transformers": "5.23", "trl": "1.16", "torch": "2.8"}


SIZES = {"training.micro_batch": 1, "training.sequence_length": 512}


def read(folder: Path, text: str, *words: str, versions: dict[str, str] = NEW) -> JobReading:
    return read_script(folder, LIBRARIES + text, *words, versions=versions)


def everything(cut: str = "512", *, before: str = "", model: str = LOAD, after: str = "") -> str:
    return before + model + ARGUMENTS + after + CUT.format(cut) + TRAIN


def parsed(*options: str) -> str:
    lines = "".join(f"parser.add_argument({option}, type=int)\n" for option in options)
    return f"parser = argparse.ArgumentParser()\n{lines}options = parser.parse_args()\n"


def own_loop(before: str = "") -> str:
    loop = "for batch in DataLoader(data, batch_size=8):\n    model(batch, labels=batch).loss.backward()\n"
    head = f"from torch.utils.data import DataLoader\n{LOAD}{CUT.format(512)}{before}"
    return f"{head}optimizer = torch.optim.AdamW(model.parameters())\n{loop}    optimizer.step()\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (everything("min(512, tokenizer.model_max_length)"), {"training.sequence_length": 512}),
        (everything(after="import nltk\nnltk.data.find('tokenizers/punkt')\n"), {"training.sequence_length": 512}),
        (
            everything("options.max_seq_length", before=parsed("'--max_seq_length', default=384"))
            + "model.generate(max_length=options.max_length)\n",
            {"training.sequence_length": 384},
        ),
        (
            everything(
                "options.max_seq_length",
                before=parsed("'--max_seq_length', default=384", "'--max_answer_length', default=30"),
            ),
            {"training.sequence_length": 384},
        ),
        (
            everything(
                after="if hasattr(model, 'enable_input_require_grads'):\n    model.enable_input_require_grads()\n"
                "else:\n    def hook(module, input, output):\n        output.requires_grad_(True)\n"
            ),
            {"training.sequence_length": 512},
        ),
        (
            everything().replace("tokenizer(each['text'], truncation=True,", "tokenizer.apply_chat_template(each,"),
            {"training.sequence_length": 512},
        ),
        (
            everything(before=parsed("'--max_length', default=384")).replace(
                CUT.format(512), "data = DataGenerator(tokenizer, max_length=options.max_length)\n"
            ),
            {"training.sequence_length": 384},
        ),
        (
            everything(
                before="torch.backends.cuda.enable_flash_sdp(True)\n",
                after="tokenizer.add_tokens(['a'])\nmodel.resize_token_embeddings(len(tokenizer))\n",
            ),
            {"training.micro_batch": 2},
        ),
    ],
)
def test_forms_that_are_read_without_a_doubt(tmp_path: Path, text: str, found: dict[str, Any]) -> None:
    reading = read(tmp_path, text)
    assert {key: reading.value(key) for key in found} == found
    assert reading.warnings == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (everything(after="model.resize_token_embeddings(count())\n"), "may add many tokens"),
        (everything(after="model.resize_token_embeddings(len(tokenizer) + count())\n"), "may add many tokens"),
        (everything(before="torch.set_default_tensor_type(torch.cuda.HalfTensor)\n"), "is not read"),
        (everything(before="torch.backends.cuda.enable_flash_sdp(False)\n"), "a fused kernel of attention is counted"),
        (everything(after="del model.transformer.h[4:]\n"), "removes part of the model"),
        (everything().replace("per_device", "use_cpu=True, per_device"), "runs on the CPU"),
        (own_loop("model.to('cpu')\n"), "puts the model on the CPU"),
        (
            own_loop(
                "class Own(torch.nn.Module):\n    def __init__(self, inner):\n        super().__init__()\n"
                "        self.inner = inner\nmodel = Own(model).cuda()\n"
            ),
            "Own holds the model; its own layers are not counted",
        ),
        (own_loop("other = DataLoader(data, 32)\n"), "loaders have batches of 32 and 8; which one trains"),
        (own_loop("other = DataLoader(data, 2)\n"), "loaders have batches of 2 and 8; which one trains"),
    ],
)
def test_forms_that_are_named(tmp_path: Path, text: str, sentence: str) -> None:
    reading = read(tmp_path, text)
    assert any(sentence in each for each in reading.warnings)
    assert reading.uncertainties


CAST = "class Cast(torch.nn.Sequential):\n    pass\n"


@pytest.mark.parametrize(
    ("text", "components"),
    [
        (
            everything(after=f"{CAST}model.lm_head = Cast(model.lm_head)\n"),
            {"logits"},
        ),
        (everything(after=f"{CAST}model.score = Cast(torch.nn.Linear(2, 3))\n"), {*get_args(Component)}),
        (everything() + "AutoPeftModelForCausalLM.from_pretrained(path()).save_pretrained_lora('x')\n", set()),
        (everything(after="other = AutoModelForCausalLM.from_config(C).cuda()\n"), {*get_args(Component)}),
    ],
)
def test_a_doubt_concerns_what_its_key_decides(tmp_path: Path, text: str, components: set[str]) -> None:
    reading = read(tmp_path, text)
    assert {each.component for each in reading.uncertainties} == components
    assert ("more" in {each.direction for each in reading.uncertainties}) == ("other" in text)
    assert reading.value("model.id") == "gpt2"


def test_a_vocabulary_of_a_known_size_is_counted(tmp_path: Path) -> None:
    reading = read(tmp_path, everything(after="model.resize_token_embeddings(60_000)\n"))
    assert reading.value("model.config")["vocab_size"] == 60_000


def test_the_length_of_a_generation_is_none_of_the_training(tmp_path: Path) -> None:
    generation = "model.generate(max_length=options.max_length)\n"
    text = parsed("'--max_length', default=20") + LOAD + ARGUMENTS + generation + TRAIN
    for words in ((), ("--max_length", "64")):
        assert "training.sequence_length" in read(tmp_path, text, *words).missing


@pytest.mark.parametrize(("words", "length", "doubted"), [((), 1024, True), (("--max_seq_length", "64"), 64, False)])
def test_a_length_that_only_has_a_bound_is_doubted(
    tmp_path: Path, words: tuple[str, ...], length: int, *, doubted: bool
) -> None:
    cut = "def cut():\n    max_seq_length = options.max_seq_length or tokenizer.model_max_length\n"
    cut += "    if max_seq_length > 1024:\n        max_seq_length = 1024\n    return max_seq_length\n"
    reading = read(tmp_path, everything("cut()", after=parsed("'--max_seq_length'") + cut), *words)
    assert reading.value("training.sequence_length") == length
    assert any("bounds a length that is not known" in each for each in reading.warnings) == doubted
    text = everything("cut()", after=parsed("'--max_seq_length'") + cut).replace("gpt2", "roberta-base")
    assert read(tmp_path, text, *words).value("training.sequence_length") == min(length, 512)  # its positions


def test_flash_attention_is_read_of_what_a_trainer_loads_its_model_with(tmp_path: Path) -> None:
    for flash, attention in (("True", "flash_attention_2"), ("False", "sdpa")):
        trainer = f"SFTTrainer('gpt2', args=SFTConfig('o', model_init_kwargs=dict(use_flash_attention_2={flash})))"
        assert read(tmp_path, f"{trainer}.train()\n").value("model.attention") == attention


def test_a_pipeline_after_the_training_does_not_tell_its_length(tmp_path: Path) -> None:
    text = LOAD + ARGUMENTS + TRAIN + "pipe = transformers.pipeline('text-generation', model=model, max_length=200)\n"
    assert "training.sequence_length" in read(tmp_path, text).missing


@pytest.mark.parametrize("how", ["load_in_4bit=True", "quantization_config=BitsAndBytesConfig(load_in_4bit=True)"])
def test_a_reference_model_in_four_bits_is_counted_so(tmp_path: Path, how: str) -> None:
    both = "from transformers import BitsAndBytesConfig\n" + LOAD.replace('"gpt2")\ntok', f'"gpt2", {how})\ntok')
    both += both.replace("model =", "reference =")
    text = f"{both}lora = LoraConfig(r=4, target_modules=['c_attn'])\n{ARGUMENTS}"
    text += "DPOTrainer(model, reference, args=args, beta=0.1, peft_config=lora, max_length=512).train()\n"
    assert read(tmp_path, text, versions={}).value("other_models") == [{"role": "reference", "quantization": "nf4"}]


@pytest.mark.parametrize(
    ("batch", "steps", "counted", "doubted"), [(1, 1, 8, False), (1, 8, 1, True), (8, 1, 8, False), (6, 2, 8, False)]
)
def test_unsloth_raises_the_batch_of_grpo(tmp_path: Path, batch: int, steps: int, counted: int, doubted: bool) -> None:
    text = f"""
from trl import GRPOConfig, GRPOTrainer
from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained("Qwen/Qwen2.5-1.5B", max_seq_length=1024, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=16)
args = GRPOConfig("o", per_device_train_batch_size={batch}, gradient_accumulation_steps={steps}, num_generations=8)
GRPOTrainer(model=model, reward_funcs=[lambda each: 0.0], args=args).train()
"""
    reading = read(tmp_path, text)
    assert reading.value("training.micro_batch") == counted
    assert any("raise the batch" in each for each in reading.warnings) == doubted


@pytest.mark.parametrize(
    ("dtype", "mixed", "precision", "doubted"),
    [
        ("float16", ", fp16=True", "fp16", False),
        ("bfloat16", ", bf16=True", "bf16", False),
        ("float16", ", bf16=True", "bf16", False),
        ("None", ", bf16=True", "bf16", False),
        ("None", "", "fp16", False),
        ("bfloat16", "", "bf16", True),
    ],
)
def test_what_four_bits_leave_has_sixteen(
    tmp_path: Path, dtype: str, mixed: str, precision: str, doubted: bool
) -> None:
    typed = f"torch_dtype=torch.{dtype}".replace("torch.None", "None")
    text = LOAD.replace('"gpt2")\ntok', f'"gpt2", load_in_4bit=True, {typed})\ntok')
    text += ARGUMENTS.replace("2)", f"2{mixed})") + "lora = LoraConfig(r=4, target_modules=['c_attn'])\n"
    text += "SFTTrainer(model, args=args, peft_config=lora).train()\n"
    reading = read(tmp_path, text, versions={"transformers": "4.41", "trl": "0.9.4", "torch": "2.8"})
    assert reading.value("training.precision") == precision
    assert any("the embedding and the head" in each for each in reading.warnings) == doubted


@pytest.mark.parametrize(
    ("given", "quantization"), [("BitsAndBytesConfig(load_in_4bit=True)", "nf4"), ("load()", "none")]
)
def test_a_trainer_is_given_the_format_of_the_model_that_it_loads(
    tmp_path: Path, given: str, quantization: str
) -> None:
    text = "from trl import *\nfrom peft import LoraConfig\nfrom transformers import BitsAndBytesConfig\n"
    text += f"how, lora = {given}, LoraConfig()\n"
    text += "SFTTrainer('gpt2', args=SFTConfig('out'), quantization_config=how, peft_config=lora).train()"
    reading = read(tmp_path, text)
    assert (reading.value("lora.quantization") or "none") == quantization
    assert any("quantization_config" in each for each in reading.warnings) == (given == "load()")


@pytest.mark.parametrize("how", ["apply_liger_kernel_to_gpt2()", "_apply_liger_kernel_to_instance(model=model)"])
def test_liger_kernels_of_a_call(tmp_path: Path, how: str) -> None:
    text = f"{LOAD}from liger_kernel.transformers import *\nimport liger_kernel\n{ARGUMENTS}"
    reading = read(tmp_path, f"{text}liger_kernel.transformers.{how}\n{TRAIN}")
    assert reading.value("training.loss") == "fused-linear"


@pytest.mark.parametrize(
    ("arguments", "fused"),
    [
        ("", True),
        ("lora_dropout=0, bias='none'", True),
        ("lora_dropout=0.05", False),
        ("bias='all'", False),
        ("target_modules=['q_proj', 'v_proj']", False),
        (None, False),
    ],
)
def test_unsloth_fuses_the_mlp_beside_plain_adapters(tmp_path: Path, arguments: str | None, fused: bool) -> None:
    text = "from unsloth import FastModel\nmodel, tokenizer = FastModel.from_pretrained('Qwen/Qwen2.5-1.5B')\n"
    text += f"model = FastModel.get_peft_model(model, {arguments})\n" if arguments is not None else ""
    reading = read(tmp_path, f"{text}SFTTrainer(model=model, args=SFTConfig('o')).train()\n")
    assert reading.value("training.fused_kernels") == ["norm", *(["mlp"] if fused else []), "rope"]


@pytest.mark.parametrize(
    ("more", "loss"), [("", None), (", eval_strategy='steps'", "full"), (", eval_strategy='no'", None)]
)
def test_evaluation_with_liger_makes_all_logits(tmp_path: Path, more: str, loss: str | None) -> None:
    text = LOAD + ARGUMENTS.replace("2)", f"2, use_liger_kernel=True{more})") + TRAIN
    assert read(tmp_path, text).value("training.evaluation_loss") == loss


@pytest.mark.parametrize(
    ("kept", "targets"), [("'lm_head' not in name", "all-linear"), ("'vision' not in name and 'lm_head' in name", None)]
)
def test_functions_that_name_all_linear_layers_are_understood(tmp_path: Path, kept: str, targets: str | None) -> None:
    text = f"""
from transformers import HfArgumentParser
@dataclass
class Adapters(TrainingArguments):
    target_modules: Optional[str] = field(default="all")
def find_names(model):
    found = set()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and {kept}:
            found.add(name.split(".")[-1])
    return sorted(found)
args, = HfArgumentParser((Adapters,)).parse_args_into_dataclasses()
{LOAD}names = args.target_modules.split(",")
if "all" in names:
    names = find_names(model)
model = get_peft_model(model, LoraConfig(r=4, target_modules=names))
{TRAIN}"""
    reading = read(tmp_path, text, "--output_dir", "o", "--per_device_train_batch_size", "2", "--target_modules", "all")
    assert any("LoraConfig(target_modules=names)" in each for each in reading.warnings) == (targets is None)
    assert targets is None or reading.value("lora.targets") == targets


def test_the_names_that_copies_of_known_tools_have_are_taken(tmp_path: Path) -> None:
    text = (
        "import fire\nfrom other import update\ndef main(**kwargs):\n    update(kwargs)\n    train()\nfire.Fire(main)\n"
    )
    words = ("--model_name", "gpt2", "--batch_size_training", "4", "--context_length", "512")
    reading = read(tmp_path, text, *words)
    assert (reading.value("training.micro_batch"), reading.value("training.sequence_length")) == (4, 512)
    words = ("--pretrain", "gpt2", "--train_batch_size", "256", "--micro_train_batch_size", "2", "--max_len", "64")
    reading = read(tmp_path, text, *words)
    assert (reading.value("model.id"), reading.value("training.micro_batch")) == ("gpt2", 2)
    assert reading.uncertainties


@pytest.mark.parametrize("pins", [{}, {"transformers": "4.54.0", "trl": "0.19.1"}])
def test_unsloths_weights_are_bf16_and_its_adapters_fp32(tmp_path: Path, pins: dict[str, str]) -> None:
    text = """
from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained("Qwen/Qwen2.5-1.5B", dtype=None, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=16)
SFTTrainer(model=model, args=SFTConfig("o", per_device_train_batch_size=1, bf16=True, max_length=512)).train()
"""
    job = read(tmp_path, text, versions=pins).job()
    assert job.lora is not None
    assert (job.training.precision, job.lora.adapter_dtype) == ("bf16", "fp32")


def test_a_flag_for_another_branch_does_not_type_a_model_from_a_config(tmp_path: Path) -> None:
    option = "parser = argparse.ArgumentParser()\nparser.add_argument('--torch_dtype')\noptions = parser.parse_args()\n"
    made = "AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained('gpt2'))\n"
    text = f"{option}model = {made}{ARGUMENTS.replace('2)', '2, bf16=True)')}{TRAIN}"
    for version, stored in (("4.40", False), ("5.23", True)):
        reading = read(tmp_path, text, "--torch_dtype", "bfloat16", versions={**NEW, "transformers": version})
        assert reading.value("training.precision") == "bf16-mixed"
        assert ("dtype=auto" in reading.evidence()["training.precision"]) == stored


def test_a_batch_that_a_script_gives_something_else_is_none(tmp_path: Path) -> None:
    text = f"{parsed(chr(39) + '--batch_size' + chr(39))}{LOAD}"
    text += "SFTTrainer(model, args=SFTConfig('o', dataset_batch_size=options.batch_size)).train()\n"
    assert read(tmp_path, text, "--batch_size", "64").value("training.micro_batch") == 8


@pytest.mark.parametrize(("version", "precision"), [("0.2.0", "fp16"), ("0.9.0", "fp16-mixed")])
def test_the_old_preparation_for_int8_casts_too(tmp_path: Path, version: str, precision: str) -> None:
    loading = '"gpt2", load_in_8bit=False, torch_dtype=torch.float16)\ntok'
    text = LOAD.replace('"gpt2")\ntok', loading) + ARGUMENTS.replace("2)", "2, fp16=True)")
    text += "import peft\nmodel = peft.prepare_model_for_int8_training(model)\n"
    text += "model = peft.get_peft_model(model, LoraConfig(r=4, target_modules=['c_attn']))\n" + TRAIN
    versions = {"transformers": "4.38", "peft": version, "torch": "2.8"}
    assert read(tmp_path, text, versions=versions).value("training.precision") == precision


@pytest.mark.parametrize(
    ("versions", "older"),
    [
        ({}, {"transformers": "4.49", "trl": "0.15"}),
        ({"transformers": "5.2"}, {"trl": "0.27"}),
        ({"trl": "0.21"}, {"transformers": "4.56"}),
        ({"trl": "1.2"}, {}),
        ({"transformers": "4.57", "trl": "0.24"}, {}),
    ],
)
def test_a_script_of_unknown_versions_may_be_the_job_of_older_ones(
    tmp_path: Path, versions: dict[str, str], older: dict[str, str]
) -> None:
    text = LOAD + "SFTTrainer(model=model, args=SFTConfig('out')).train()\n"
    reading = read(tmp_path, text, versions=versions)
    changes = reading.job(SIZES).unsure.older
    assert {key.partition(".")[2]: each for key, each in changes.items() if key.startswith("software.")} == older
    if not versions:
        assert reading.value("training.loss") == "chunked"
        assert (changes["training.loss"], changes["training.activation_checkpointing"]) == ("full", "none")
        assert reading.job({**SIZES, "software.trl": "1.16"}).unsure.older == {}


def test_keys_of_a_file_and_flags_date_trl(tmp_path: Path) -> None:
    parser = "(args,) = TrlParser((SFTConfig,)).parse_args_and_config()\nSFTTrainer(model=model, args=args).train()\n"
    (tmp_path / "sft.yaml").write_text("max_seq_length: 2048\n")
    for words in (("--config", "sft.yaml"), ("--max_seq_length", "2048")):
        reading = read(tmp_path, LOAD + parser, *words, versions={})
        assert (reading.value("software.trl"), reading.value("software.transformers")) == ("0.19", "4.54")
    pinned = read(tmp_path, LOAD + parser, versions={"transformers": "4.41"})
    assert pinned.value("software.trl") == "0.11"


@pytest.mark.parametrize(("version", "optimizer"), [("4.31", "adamw-hf"), ("4.32", "adamw"), ("5.0", "adamw-fused")])
def test_the_default_optimizer_by_version(tmp_path: Path, version: str, optimizer: str) -> None:
    reading = read(tmp_path, everything(), versions={"transformers": version, "torch": "2.8"})
    assert reading.value("training.optimizer") == optimizer


def test_a_module_that_is_not_found_is_refused(tmp_path: Path) -> None:
    line = ["torchrun", "-m", "pkg.train", "--model_name_or_path", "gpt2", "--per_device_train_batch_size", "2"]
    with pytest.raises(CannotTellError, match=r"pkg\.train was not found"):
        read_launch(line, environ={}, cwd=tmp_path)


def test_a_script_that_cannot_be_read_is_a_doubt(tmp_path: Path) -> None:
    absent = read_launch(["python", "absent.py", "--model_name_or_path", "gpt2"], environ={}, cwd=tmp_path)
    for reading in (read(tmp_path, "print 'x'\n"), absent):
        assert {each.component for each in reading.uncertainties} >= {"weights", "activations"}


@pytest.mark.parametrize("module", ["arguments", "nowhere.arguments", "lib.arguments"])
@pytest.mark.parametrize("names", ["TrainingArguments", "DataArguments, TrainingArguments"])
def test_arguments_of_another_file_have_defaults_of_its_own(tmp_path: Path, module: str, names: str) -> None:
    (tmp_path / "lib").mkdir()
    for path in ("arguments.py", "lib/arguments.py"):
        (tmp_path / path).write_text("no Python")
    text = f"from {module} import {names}\n" + LOAD + CUT.format(512)
    text += f"*_, args = HfArgumentParser(({names},)).parse_args_into_dataclasses()\n{TRAIN}"
    reading = read(tmp_path, text)
    assert "training.micro_batch" in reading.missing
    for name in names.split(", "):
        assert any(f"the defaults of {module}.{name} are in another file" in each for each in reading.warnings)
    assert read(tmp_path, text, "--per_device_train_batch_size", "4").value("training.micro_batch") == 4


def test_the_base_model_of_adapters_is_counted(tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "gpt2", "r": 8}))
    for name, key in (("AutoModelForCausalLM", "training.trainable"), ("AutoPeftModelForCausalLM", "lora.rank")):
        reading = read(
            tmp_path,
            everything(
                model=LOAD.replace('AutoModelForCausalLM.from_pretrained("gpt2', f'{name}.from_pretrained("./adapters')
            ),
        )
        assert reading.value("model.id") == "gpt2"
        assert key in {each.unless for each in reading.uncertainties}


def test_old_names_of_accelerates_precision(tmp_path: Path) -> None:
    text = "from accelerate import Accelerator\naccelerator = Accelerator(fp16=True)\n"
    assert read(tmp_path, own_loop(text)).value("training.precision") == "fp16-mixed"


def test_the_first_of_several_trainings_is_counted_and_its_batch_asked_for(tmp_path: Path) -> None:
    more = (
        LIBRARIES_OF_TWO
        + LOAD
        + "SFTTrainer(model=model, args=SFTConfig('a', per_device_train_batch_size=8)).train()\n"
    )
    text = more + "DPOTrainer(model=model, args=DPOConfig('b', per_device_train_batch_size=1)).train()\n"
    reading = read(tmp_path, text)
    assert "training.micro_batch" in reading.missing
    assert reading.value("other_models") is None
    assert any("the script trains again" in each for each in reading.warnings)
    assert read(tmp_path, more).value("training.micro_batch") == 8


def test_a_length_that_trl_does_not_cut_to_is_asked_for(tmp_path: Path) -> None:
    config = "SFTConfig('o', per_device_train_batch_size=4{})"
    text = f"{LOAD}SFTTrainer(model=model, args={config}).train()\n"
    skips = ", dataset_kwargs={'skip_prepare_dataset': True}"
    assert read(tmp_path, text.format("")).value("training.sequence_length") == 1024
    assert "training.sequence_length" in read(tmp_path, text.format(skips)).missing
    former = f"{LOAD}args = TrainingArguments('o', per_device_train_batch_size=4)\n"  # TRL's until 0.12
    former += "SFTTrainer(model=model, args=args, dataset_text_field='text'{}).train()\n"
    assert read(tmp_path, former.format("")).value("training.sequence_length") == 1024
    assert "training.sequence_length" in read(tmp_path, former.format(skips)).missing


@pytest.mark.parametrize(
    ("name", "task"),
    [("Llava", "causal-lm"), ("Qwen2_5_VL", "causal-lm"), ("MT5", "seq2seq-lm"), ("Whisper", "speech-seq2seq")],
)
def test_what_generates_under_a_condition_is_a_decoder_with_images_or_an_encoder_with_a_decoder(
    tmp_path: Path, name: str, task: str
) -> None:
    text = f"model = transformers.{name}ForConditionalGeneration.from_pretrained('a/model')\n"
    assert read(tmp_path, everything(model=text)).value("model.task") == task


def test_adapters_of_options_are_those_that_the_script_makes_of_them(tmp_path: Path) -> None:
    text = """parser = HfArgumentParser((transformers.TrainingArguments, trl.ModelConfig))
args, model_args = parser.parse_args_into_dataclasses()
peft_config = trl.get_peft_config(model_args)
peft_config.target_modules = set(["q_proj", "v_proj"])
trl.SFTTrainer(model, args=args, peft_config=peft_config).train()
"""
    words = ("--use_peft", "--lora_target_modules", "all-linear", "--lora_r", "4", "--output_dir", "o")
    reading = read(tmp_path, f"import trl\n{LOAD}{text}", *words)
    assert (reading.value("lora.targets"), reading.value("lora.rank")) == (["q_proj", "v_proj"], 4)


def test_the_file_of_trls_parser_fills_an_own_dataclass(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: gpt2\nbatch: 3\nlongest: 384\n")
    text = """from dataclasses import dataclass
@dataclass
class Own:
    name: str
    batch: int
    longest: int
own = TrlParser(dataclass_types=[Own]).parse_args_and_config()[0]
model = AutoModelForCausalLM.from_pretrained(own.name)
config = SFTConfig("o", per_device_train_batch_size=own.batch, max_length=own.longest)
SFTTrainer(model, args=config).train()
"""
    reading = read(tmp_path, text, "--config", str(tmp_path / "a.yaml"))
    keys = ("model.id", "training.micro_batch", "training.sequence_length")
    assert [reading.value(key) for key in keys] == ["gpt2", 3, 384]


def test_the_former_flag_of_the_evaluation_batch_counts_first(tmp_path: Path) -> None:
    text = """(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
transformers.Seq2SeqTrainer(model, args, train_dataset=data, compute_metrics=metrics).train()
"""
    words = ("--output_dir", "o", "--eval_strategy", "steps", "--per_gpu_eval_batch_size", "64")
    reading = read(tmp_path, LOAD + text, *words)
    assert reading.value("training.evaluation_batch") == 64
    assert any("whole validation set" in each for each in reading.warnings)
    generating = read(tmp_path, LOAD + text, *words, "--predict_with_generate", "--half_precision_backend", "auto")
    assert not any("whole validation set" in each or "precision" in each for each in generating.warnings)


def test_an_average_of_torchs_is_named(tmp_path: Path) -> None:
    reading = read(tmp_path, own_loop("average = torch.optim.swa_utils.AveragedModel(model)\n"))
    assert any("keeps an average of the weights" in each for each in reading.warnings)


def test_the_batch_of_evaluations_own_loader_is_counted_in_evaluation(tmp_path: Path) -> None:
    reading = read(tmp_path, own_loop("eval_size = 64\nother = DataLoader(data, batch_size=eval_size)\n"))
    assert [reading.value(f"training.{key}") for key in ("micro_batch", "evaluation_batch")] == [8, 64]
    assert not any("loaders have batches" in each for each in reading.warnings)


def test_layers_that_a_script_makes_of_a_flag_are_named(tmp_path: Path) -> None:
    text = """@dataclasses.dataclass
class Ours:
    target_modules: Optional[str] = "q_proj,v_proj"
    def __post_init__(self):
        if type(self.target_modules) == str:
            self.target_modules = self.target_modules.split(",")
ours, args = HfArgumentParser((Ours, TrainingArguments)).parse_args_into_dataclasses()
model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=ours.target_modules))
Trainer(model, args, train_dataset=data).train()
"""
    reading = read(tmp_path, LOAD + text, "--output_dir", "o", "--target_modules", "q_proj,k_proj")
    assert any("target_modules=ours.target_modules) is only known when the script runs" in w for w in reading.warnings)


def test_a_rank_of_zero_means_no_adapters(tmp_path: Path) -> None:
    options = "parser = argparse.ArgumentParser()\nparser.add_argument('--lora_rank', type=int, default=0)\n"
    text = own_loop(f"from actor import Actor\n{options}model = Actor(model, parser.parse_args().lora_rank)\n")
    reading = read(tmp_path, text, "--lora_rank", "0")
    assert (reading.value("lora.rank"), reading.refused) == (None, {})


def test_a_list_that_fire_takes_is_one(tmp_path: Path) -> None:
    text = f"""
import fire
from typing import List
from peft import get_peft_model
def main(target_modules: List[str] = None):
    {LOAD.splitlines()[0]}
    model = get_peft_model(model, LoraConfig(r=4, target_modules=target_modules))
    {ARGUMENTS}    Trainer(model=model, args=args).train()
fire.Fire(main)
"""
    for words in ('["c_attn", "c_proj"]', "[c_attn,c_proj]"):
        assert read(tmp_path, text, "--target_modules", words).value("lora.targets") == ["c_attn", "c_proj"]


def test_a_rank_by_default_is_no_note_where_adapters_are_switched_off(tmp_path: Path) -> None:
    options = "parser = argparse.ArgumentParser()\nparser.add_argument('--lora', action='store_true')\n"
    options += "parser.add_argument('--lora-r', type=int, default=64)\noptions = parser.parse_args()\n"
    text = f"{options}from other import load\nmodel = load(options)\n{ARGUMENTS}{TRAIN}"
    words = ("--model_name_or_path", "gpt2")
    assert not any("adapters" in each for each in read(tmp_path, text, *words).warnings)
    assert any("no adapters are counted" in each for each in read(tmp_path, text, *words, "--lora-r", "8").warnings)


def test_fields_of_transformers_own_shorthand_have_their_defaults(tmp_path: Path) -> None:
    text = """from dataclasses import dataclass
from transformers.hf_argparser import HfArg
@dataclass
class Own(TrainingArguments):
    gradient_checkpointing: bool = HfArg(default=True, help="checkpointing")
    per_device_train_batch_size: int = HfArg(default=32, help="batch")
(args,) = HfArgumentParser(Own).parse_args_into_dataclasses()
Trainer(model, args, train_dataset=data).train()
"""
    reading = read(tmp_path, LOAD + text, "--output_dir", "o")
    keys = ("training.micro_batch", "training.activation_checkpointing")
    assert [reading.value(key) for key in keys] == [32, "full"]


def test_what_is_not_known_is_named_in_the_order_of_the_script(tmp_path: Path) -> None:
    unknown = (
        "per_device_train_batch_size=f(1), gradient_accumulation_steps=f(2), gradient_checkpointing=f(3), bf16=f(4)"
    )
    text = f"{LOAD}Trainer(model, TrainingArguments('o', {unknown})).train()\n"
    named = [each for each in read(tmp_path, text).warnings if "f(" in each]
    assert [each.partition("=f(")[2][:1] for each in named] == ["1", "2", "3", "4"]


def test_the_trainer_does_not_switch_off_the_checkpointing_of_its_model(tmp_path: Path) -> None:
    text = LOAD + "model.gradient_checkpointing_enable()\n"
    off = 'args = TrainingArguments("out", per_device_train_batch_size=2, gradient_checkpointing=False)\n'
    assert read(tmp_path, text + off + TRAIN).value("training.activation_checkpointing") == "full"
    assert read(tmp_path, LOAD + off + TRAIN).value("training.activation_checkpointing") == "none"


@pytest.mark.parametrize("given", ["", ", fsdp=''", ", fsdp=fsdp if False else None"])
def test_a_trainer_shards_only_if_its_arguments_say_so(tmp_path: Path, given: str) -> None:
    text = f"""
import fire
def main(fsdp: str = "full_shard auto_wrap"):
    {LOAD.splitlines()[0]}
    args = TrainingArguments("out", per_device_train_batch_size=2, bf16=True{given})
    {TRAIN}fire.Fire(main)
"""
    assert read(tmp_path, text).value("parallel.strategy") is None
    assert (
        read(tmp_path, text.replace(f"bf16=True{given})", "bf16=True, fsdp=fsdp)")).value("parallel.strategy")
        == "fsdp2"
    )


@pytest.mark.parametrize("place", ["peft", "src/peft", "peft/src/peft"])
def test_a_copy_of_a_library_beside_the_script_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "__init__.py").touch()
    assert (
        f"{place} beside train.py may be a changed copy of peft; it is not read."
        in read(tmp_path, everything()).warnings
    )


def test_arguments_from_a_module_that_is_not_there_are_not_the_defaults(tmp_path: Path) -> None:
    text = f"from settings import args\n{LOAD}{CUT.format(512)}{TRAIN}"
    assert "training.micro_batch" in read(tmp_path, text).missing


@pytest.mark.parametrize(
    ("parameters", "is_part"),
    [
        ("model.parameters()", False),
        ("model.h.parameters()", True),
        ("[{'params': model.h.parameters()}, {'params': [p for n, p in model.lm_head.named_parameters()]}]", True),
        ("[{'params': model.transformer.parameters()}, {'params': model.lm_head.parameters()}]", False),
        ("[{'params': [p for n, p in model.named_parameters() if 'bias' in n]}]", False),
    ],
)
def test_an_optimizer_of_some_parameters_is_named(tmp_path: Path, parameters: str, is_part: bool) -> None:
    reading = read(tmp_path, own_loop().replace("model.parameters()", parameters))
    assert any("AdamW gets some parameters" in each for each in reading.warnings) == is_part


def test_the_batch_of_the_only_loader_counts_before_an_option_that_nothing_reads(tmp_path: Path) -> None:
    options = parsed("'--per_device_train_batch_size', default=4", "'--per_device_eval_batch_size', default=16")
    text = own_loop(options).replace("batch_size=8", "batch_size=options.per_device_eval_batch_size")
    assert read(tmp_path, text).value("training.micro_batch") == 16


def test_adapters_in_a_branch_that_is_not_known_are_not_denied(tmp_path: Path) -> None:
    branch = "if tokenizer.x:\n    from peft import get_peft_model\n    model = get_peft_model(model, LoraConfig())\n"
    reading = read(tmp_path, everything(model=LOAD + branch), "--lora_r", "8")
    assert not any("attaches no adapters" in each for each in (*reading.warnings, *reading.evidence().values()))


@pytest.mark.parametrize(("forward", "directions"), [("", {"more"}), ("with torch.no_grad(): pass", {"either"})])
def test_the_model_of_an_own_module_is_known(tmp_path: Path, forward: str, directions: set[str]) -> None:
    own = f"""
class Tagger(torch.nn.Module):
    def __init__(self, name):
        self.model = transformers.AutoModel.from_pretrained(name)
        self.head = torch.nn.Linear(768, 2)
    def forward(self, ids):
        {forward or "return self.head(self.model(ids))"}
tagger = Tagger("bert-base-uncased")
"""
    text = own_loop().replace(LOAD, LOAD.splitlines()[1] + own).replace("model.parameters()", "tagger.parameters()")
    reading = read(tmp_path, text.replace("model(batch", "tagger(batch"))
    assert (reading.value("model.id"), reading.value("model.task")) == ("bert-base-uncased", "feature-extraction")
    assert any("Tagger holds the model; its own layers are not counted" in each for each in reading.warnings)
    assert {each.direction for each in reading.uncertainties if each.component == "weights"} == directions


def test_a_function_that_makes_a_model_names_no_layers(tmp_path: Path) -> None:
    text = """
def get_model(name):
    model = auto_gptq.load(name)
    for name, each in model.named_modules():
        if isinstance(each, int) and 'lm_head' in name:
            each.half()
    return model
model = get_model('gpt2')
"""
    assert read(tmp_path, text + ARGUMENTS + TRAIN).value("model.id") != "all-linear"


def test_a_module_that_imports_the_script_back_reads_it_no_second_time(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("import train\ndef same(value):\n    return train.itself(value)\n")
    text = f"import helper\ndef itself(value):\n    return value\n{LOAD}model = helper.same(model)\n"
    text += ARGUMENTS + CUT.format(512) + TRAIN
    reading = read(tmp_path, text)
    assert (reading.value("model.id"), reading.uncertainties) == ("gpt2", ())


def test_a_model_that_is_loaded_after_the_training_is_not_beside_it(tmp_path: Path) -> None:
    other = 'other = AutoModelForCausalLM.from_pretrained("gpt2", device_map="auto")\n'
    sentence = "a model loaded after the training is not counted"
    for text, is_later in ((everything() + other, True), (other + everything(), False)):
        reading = read(tmp_path, text)
        assert any(sentence in each for each in reading.warnings) == is_later
        assert (reading.value("other_models") is None) == is_later


def test_methods_that_set_the_batch_ask_for_it(tmp_path: Path) -> None:
    reading = read(tmp_path, everything(after="args.set_training(batch_size=64)\n"))
    assert "training.micro_batch" in reading.missing
    assert any("args.set_training(batch_size=64) is not read" in each for each in reading.warnings)


def test_a_search_of_settings_is_in_doubt(tmp_path: Path) -> None:
    text = everything().replace(".train()", ".hyperparameter_search(n_trials=3)")
    assert any("hyperparameter_search tries other settings" in each for each in read(tmp_path, text).warnings)


def test_own_arguments_have_their_own_defaults(tmp_path: Path) -> None:
    own = (
        "@dataclass\nclass Own(TrainingArguments):\n    per_device_train_batch_size: int = 64\n    bf16: bool = True\n"
    )
    text = everything(before=f"from dataclasses import dataclass\n{own}")
    reading = read(tmp_path, text.replace(ARGUMENTS, "args = Own('out')\n"))
    assert (reading.value("training.micro_batch"), reading.value("training.precision")) == (64, "bf16-mixed")
    made = text.replace("    bf16", "    def __init__(self, out):\n        super().__init__(out)\n    bf16")
    assert "training.micro_batch" in read(tmp_path, made.replace(ARGUMENTS, "args = Own('out')\n")).missing
