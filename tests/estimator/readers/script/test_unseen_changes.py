"""What a script does to its model where it is not followed, and flags that only such code reads."""

from pathlib import Path

import pytest
from reading import read_script as read

from vramtop.estimator.readers.source.evidence import JobReading

HEAD = """
from dataclasses import dataclass, field
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
import elsewhere
"""
LOAD = "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
TRAIN = "Trainer(model=model, args=TrainingArguments('x', per_device_train_batch_size=2)).train()\n"
OPTIONS = """
@dataclass
class Options:
    {field}
(options,) = HfArgumentParser(Options).parse_args_into_dataclasses()
"""
STATES = {"weights", "gradients", "optimizer"}


def unsure(reading: JobReading) -> set[str]:
    return {each.component for each in reading.uncertainties if each.unless is None}


def warned(reading: JobReading, words: str) -> bool:
    return any(words in sentence for sentence in reading.warnings)


@pytest.mark.parametrize(
    "change",
    [
        "model = elsewhere.recipe('lora')(model)",
        "model = elsewhere.RECIPES['lora'](1)(model)",
        "recipe = elsewhere.make()\nmodel = recipe.load(model, {})",
        "RECIPES = {}\nmodel = RECIPES['lora'](1)(model)",
        "model = elsewhere.Recipe(model)",
        "other = elsewhere.RECIPES['lora'](1)(model)",
    ],
)
def test_what_is_not_followed_may_change_the_model(tmp_path: Path, change: str) -> None:
    reading = read(tmp_path, HEAD + LOAD + change + "\n" + TRAIN)
    assert unsure(reading) >= STATES
    assert warned(reading, "(...) is not known")
    assert reading.value("model.id") == "Qwen/Qwen2.5-0.5B"
    adapted = read(tmp_path, HEAD + LOAD + change + "\n" + TRAIN, "--lora_r", "16")
    assert adapted.value("lora.rank") == 16
    assert not warned(adapted, "has no effect")


@pytest.mark.parametrize("use", ["elsewhere.evaluate(model)", "size = elsewhere.count(model)", "elsewhere.show(model)"])
def test_what_only_looks_at_the_model_leaves_it(tmp_path: Path, use: str) -> None:
    reading = read(tmp_path, HEAD + LOAD + use + "\n" + TRAIN)
    assert not unsure(reading) & STATES
    assert read(tmp_path, HEAD + LOAD + use + "\n" + TRAIN, "--lora_r", "16").value("lora.rank") is None


def test_a_table_of_loading_arguments_that_is_not_known_is_named(tmp_path: Path) -> None:
    script = HEAD + LOAD.replace("B')", "B', **more)") + TRAIN
    reading = read(tmp_path, script.replace("model =", "more = elsewhere.arguments()\nmodel ="))
    assert {*STATES, "activations"} <= unsure(reading)
    assert warned(reading, "from_pretrained(**more) is only known when the script runs")
    known = read(tmp_path, script.replace("model =", "more = {'revision': 'main'}\nmodel ="))
    assert not warned(known, "**more")


@pytest.mark.parametrize(
    ("made", "keys"),
    [
        ("peft.get_peft_model(model, peft.LoraConfig(**more))", {"lora.rank", "lora.targets"}),
        ("peft.get_peft_model(model, peft.LoraConfig(r=4, **more))", {"lora.targets"}),
        ("peft.get_peft_model(model, peft.LoraConfig(r=more['r'], **more))", {"lora.rank", "lora.targets"}),
        ("peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=['q_proj'], **more))", set()),
        (f"{LOAD[8:-2]}, quantization_config=BitsAndBytesConfig(**more))", {"lora.quantization"}),
    ],
)
def test_tables_of_adapters_and_quantization_that_are_not_known_are_named(
    tmp_path: Path, made: str, keys: set[str]
) -> None:
    text = f"import peft\nfrom transformers import BitsAndBytesConfig\nmore = elsewhere.read()\n{LOAD}model = {made}\n"
    reading = read(tmp_path, HEAD + text + TRAIN)
    assert {key for each in reading.uncertainties if (key := each.unless) and key.startswith("lora.")} == keys
    assert warned(reading, "(**more) is only known when the script runs") == bool(keys)


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("training_recipe", "weights"),
        ("tune_type_llm", "optimizer"),
        ("vision_tower", "weights"),
        ("pretrained_model_path", "weights"),
        ("freeze_backbone", "gradients"),
        ("bits", "weights"),
    ],
)
def test_flags_about_the_model_that_nothing_reads_are_named(tmp_path: Path, name: str, component: str) -> None:
    options = OPTIONS.format(field=f"{name}: str = 'x'")
    reading = read(tmp_path, HEAD + options + LOAD + TRAIN, f"--{name}", "4")
    assert warned(reading, f"--{name} on the command line may change the memory and is not counted")
    assert component in unsure(reading)
    used = HEAD + options + LOAD + f"if options.{name} == '4':\n    model.requires_grad_(False)\n" + TRAIN
    assert not warned(read(tmp_path, used, f"--{name}", "4"), f"--{name} on the command line")


@pytest.mark.parametrize("name", ["fine_tuner", "save_checkpoint_every", "rabbits"])
def test_flags_about_other_things_are_not(tmp_path: Path, name: str) -> None:
    options = OPTIONS.format(field=f"{name}: str = 'x'")
    assert not warned(read(tmp_path, HEAD + options + LOAD + TRAIN, f"--{name}", "4"), name)


def test_layers_of_adapters_that_a_flag_alone_asks_for_are_in_doubt(tmp_path: Path) -> None:
    script = HEAD + "model = elsewhere.load('Qwen/Qwen2.5-0.5B')\n" + TRAIN
    reading = read(tmp_path, script, "--model_name_or_path", "Qwen/Qwen2.5-0.5B", "--lora_r", "16")
    assert reading.value("lora.rank") == 16
    assert any(each.unless == "lora.targets" for each in reading.uncertainties)
    named = read(
        tmp_path, script, "--model_name_or_path", "x", "--lora_r", "16", "--lora_target_modules", "q_proj", "--use_peft"
    )
    assert not any(each.unless == "lora.targets" for each in named.uncertainties)


POST_INIT = (
    "use_lora: bool = False\n    use_qlora: bool = False\n    lora_r: int = 8\n"
    "    def __post_init__(self):\n        if self.use_qlora:\n            self.use_lora = True"
)


def test_what_a_dataclass_assigns_to_itself_counts(tmp_path: Path) -> None:
    adapt = (
        "from peft import LoraConfig, get_peft_model\n"
        "if options.use_lora:\n    model = get_peft_model(model, LoraConfig(r=options.lora_r))\n"
    )
    for middle in (adapt, "model = elsewhere.adapt(model)\n"):
        script = HEAD + OPTIONS.format(field=POST_INIT) + LOAD + middle + TRAIN
        assert read(tmp_path, script, "--use_qlora", "True", "--lora_r", "4").value("lora.rank") == 4, middle
        assert read(tmp_path, script).value("lora.rank") is None, middle
    plain = (
        HEAD + OPTIONS.format(field=POST_INIT).replace("(options,) = ", "# ") + "options = Options(use_qlora=True)\n"
    )
    assert read(tmp_path, plain + LOAD + adapt + TRAIN).value("lora.rank") == 8
    assert read(tmp_path, plain.replace("True)", "False)") + LOAD + adapt + TRAIN).value("lora.rank") is None


def test_an_option_that_the_script_assigns_is_what_it_assigns(tmp_path: Path) -> None:
    options = OPTIONS.format(field="max_length: int = 128\n    dropout: float = 0.0")
    trainer = TRAIN.replace("TrainingArguments", "elsewhere.arguments")
    script = HEAD + options + "options.max_length = 2 * options.dropout + 512\n" + LOAD + trainer
    for arguments in ((), ("--max_length", "64")):
        assert read(tmp_path, script, *arguments).value("training.sequence_length") == 512, arguments
    left = script.replace("2 * options.dropout + 512", "options.max_length")
    assert read(tmp_path, left, "--max_length", "64").value("training.sequence_length") == 64


def test_a_flag_that_nothing_reads_stands_for_no_other(tmp_path: Path) -> None:
    reading = read(tmp_path, HEAD + LOAD + TRAIN, "--target_modules", "q_proj")
    assert warned(reading, "--target_modules on the command line is not counted.")
    options = OPTIONS.format(field="torch_dtype: str = 'auto'\n    deepspeed: str = None")
    (tmp_path / "zero.json").write_text('{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}')
    sharded = read(tmp_path, HEAD + options + LOAD + TRAIN, "--torch_dtype", "bfloat16", "--deepspeed", "zero.json")
    assert not warned(sharded, "--torch_dtype")


@pytest.mark.parametrize(
    ("change", "batch"),
    [
        ("given.update(per_device_train_batch_size=8)", 8),
        ("given.update({'per_device_train_batch_size': 8})", 8),
        ("given.update(elsewhere.settings())", None),
        ("given.pop('per_device_train_batch_size')", None),
    ],
)
def test_a_table_that_a_function_changes_is_changed_for_its_caller(
    tmp_path: Path, change: str, batch: int | None
) -> None:
    text = f"given = {{'per_device_train_batch_size': 2}}\ndef change(given):\n    {change}\nchange(given)\n"
    reading = read(
        tmp_path, HEAD + LOAD + text + "Trainer(model=model, args=TrainingArguments('x', **given)).train()\n"
    )
    assert reading.value("training.micro_batch") == batch


def doubted_parts(reading: JobReading) -> set[str]:
    return {each.component for each in reading.uncertainties}


MADE = "trainer = Trainer(model=model, args=TrainingArguments('x', per_device_train_batch_size=2{more}))\n"


@pytest.mark.parametrize(
    ("trainer", "after", "component"),
    [
        (MADE.replace("model=model", "model=model, compute_loss_func=elsewhere.loss"), "", "logits"),
        (MADE.replace("model=model", "model=model, optimizer_cls_and_kwargs=(elsewhere.Own, {{}})"), "", "optimizer"),
        (MADE, "trainer.compute_loss = elsewhere.loss\n", "activations"),
        (MADE, "def step(*given):\n    return 0\ntrainer.training_step = step\n", "activations"),
        (MADE, "trainer.create_optimizer = elsewhere.optimizer\n", "optimizer"),
        (MADE, "trainer.label_names = elsewhere.labels\n", ""),
    ],
)
def test_what_a_trainer_is_given_in_the_place_of_its_own_code_is_a_doubt(
    tmp_path: Path, trainer: str, after: str, component: str
) -> None:
    reading = read(tmp_path, HEAD + LOAD + trainer.format(more="") + after + "trainer.train()\n")
    assert (component in doubted_parts(reading)) == bool(component)
    assert warned(reading, "is not read") == bool(component)


@pytest.mark.parametrize(
    ("more", "around", "doubted"),
    [("", "torch.autocast('cuda')", True), (", bf16=True", "torch.autocast('cuda')", False), ("", "open('x')", False)],
)
def test_autocast_around_the_training_is_a_doubt(tmp_path: Path, more: str, around: str, *, doubted: bool) -> None:
    text = f"import torch\n{HEAD}{LOAD}{MADE.format(more=more)}with {around}:\n    trainer.train()\n"
    reading = read(tmp_path, text)
    assert warned(reading, "autocast(...) may be around the training") == doubted
    assert ("activations" in doubted_parts(reading)) == doubted


@pytest.mark.parametrize(
    ("before", "after", "doubted"),
    [
        ("pipe = transformers.pipeline('text-classification', model='other/model', device=0)\n", "", True),
        ("from vllm import LLM\nllm = LLM('other/model')\n", "", True),
        ("", "pipe = transformers.pipeline('text-generation', model='x')\n", False),
        ("pipe = transformers.pipeline('text-generation', model=model)\n", "", False),
    ],
)
def test_a_model_that_runs_before_the_training_is_a_doubt(
    tmp_path: Path, before: str, after: str, *, doubted: bool
) -> None:
    reading = read(tmp_path, f"import transformers\n{HEAD}{LOAD}{before}{TRAIN}{after}")
    assert warned(reading, "may hold another model, which is not counted") == doubted
    assert ("weights" in doubted_parts(reading)) == doubted


@pytest.mark.parametrize(("value", "doubted"), [("True", True), ("False", False)])
def test_scores_of_attention_that_the_model_returns_are_a_doubt(tmp_path: Path, value: str, *, doubted: bool) -> None:
    text = LOAD.replace("B')", f"B', output_attentions={value})")
    for load in (text, f"{LOAD}model.config.output_attentions = {value}\n"):
        reading = read(tmp_path, HEAD + load + TRAIN)
        assert ("activations" in doubted_parts(reading)) == doubted
        assert warned(reading, "keeps the scores of attention") == doubted
