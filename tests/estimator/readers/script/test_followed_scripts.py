"""Scripts are followed: files that they load, models beside the trained one, and what stays open is a doubt."""

from functools import partial
from pathlib import Path

import pytest
from reading import found, read_line, read_script

from vramtop.estimator.readers.source.evidence import JobReading

VERSIONS = {"transformers": "5.23.0", "torch": "2.13.0"}
read = partial(read_script, versions=VERSIONS, given={"training.keep_outputs": True})

LOAD = "from transformers import AutoModelForCausalLM\nimport torch\n"
TRAIN = "opt = torch.optim.AdamW(model.parameters())\nfor b in loader:\n    model(b).loss.backward()\n    opt.step()\n"


def unsure(reading: JobReading) -> dict[str, str]:
    return {each.component: each.direction for each in reading.uncertainties}


def test_conditions_that_decide_nothing_about_memory_are_no_doubt(tmp_path: Path) -> None:
    noise = (
        "import os\nif os.path.exists('x'):\n    print('there')\nif rank() == 0:\n    wandb.init(project='x')\n"
        "steps = 10 if quick() else 1000\nfor step in range(steps):\n    if step % 10 == 0:\n        evaluate(model)\n"
    )
    reading = read(tmp_path, f'{LOAD}model = AutoModelForCausalLM.from_pretrained("gpt2")\n{noise}{TRAIN}')
    assert reading.warnings == ()
    assert reading.uncertainties == ()


def test_a_model_that_is_not_followed_is_not_taken_for_another_one(tmp_path: Path) -> None:
    made = 'from mylib import build\nmodel = build()\nteacher = AutoModelForCausalLM.from_pretrained("gpt2-large")\n'
    reading = read(tmp_path, f"{LOAD}{made}{TRAIN}")
    assert "model.id" in reading.missing
    assert any("the model that the optimizer trains is not known" in w for w in reading.warnings)
    assert unsure(reading)["weights"] == "either"


@pytest.mark.parametrize(
    ("line", "is_open"),
    [
        ("from mylib import freeze_some; freeze_some(model)", True),
        ("for p in choose(): p.requires_grad = False", True),
        ("model = prepared(model)", True),
        ("evaluate(model); describe(model)", False),
        ("model.model.layers[pick()].requires_grad_(False)", True),
        ("exec(code)", True),
        ("model.resize_token_embeddings(size())", True),
        ("model.to(dtype())", True),
    ],
)
def test_what_is_not_understood_is_a_doubt(tmp_path: Path, line: str, is_open: bool) -> None:
    load = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")\n'
    reading = read(tmp_path, f"{LOAD}{load}{line}\n{TRAIN}")
    assert bool(unsure(reading)) is is_open
    assert bool(reading.warnings) is is_open


@pytest.mark.parametrize(
    "scorer", ["scorer = SentenceTransformer('a')", "def score():\n    scorer = SentenceTransformer('a')\nprint(score)"]
)
def test_an_encoder_beside_the_trained_model_is_another_model(tmp_path: Path, scorer: str) -> None:
    load = f"from sentence_transformers import SentenceTransformer\n{scorer}\n"
    load += 'model = AutoModelForCausalLM.from_pretrained("gpt2")\n'
    reading = read(tmp_path, f"{LOAD}{load}{TRAIN}")
    assert found(reading, "model.id", "other_models") == ("gpt2", None)
    assert {*unsure(reading).values()} == {"more"}


def test_the_config_of_a_command_line(tmp_path: Path) -> None:
    script = (
        "from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments\n"
        "parser.add_argument('--model_type')\nparser.add_argument('--config_overrides')\nargs = parser.parse_args()\n"
        "config = CONFIG_MAPPING[args.model_type]()\nconfig.update_from_string(args.config_overrides)\n"
        "tokenizer = AutoTokenizer.from_pretrained('gpt2')\nmodel = AutoModelForCausalLM.from_config(config)\n"
        "Trainer(model=model, args=TrainingArguments('out')).train()\n"
    )
    reading = read(tmp_path, script, "--model_type", "gpt2", "--config_overrides", "n_embd=32,n_head=4,n_layer=2")
    assert any("the config of from_config(...) is not known" in each for each in reading.warnings)
    assert unsure(reading)["weights"] == "either"


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ("import lightning as L\nL.Trainer(precision='bf16-mixed').fit(model)", "Trainer"),
        ("from lightning.fabric import Fabric\nfabric = Fabric(precision='bf16-true')\nfabric.setup(model)", "Fabric"),
        ("from sentence_transformers import CrossEncoder\nCrossEncoder('a').fit(data)", "CrossEncoder"),
    ],
)
def test_what_only_a_rehearsal_reads_is_named(tmp_path: Path, made: str, name: str) -> None:
    declared = "parser.add_argument('--model_name_or_path')\nargs = parser.parse_args()\n"
    script = f"{LOAD}{declared}model = Own()\n{made}\n"
    assert "model.id" in read(tmp_path, script).missing
    reading = read(tmp_path, script, "--model_name_or_path", "gpt2")
    assert any(f"{name}(...) is not read" in each for each in reading.left_open)


MODULES = {
    "config.py": "BATCH = 4\nNAME = 'gpt2'\nif __name__ == '__main__':\n    BATCH = 64\n",
    "lib/__init__.py": "from .loading import load\n",
    "lib/loading.py": "import transformers\nfrom config import NAME\nfrom . import sizes\n\ndef load(name=NAME):\n"
    "    return transformers.AutoModelForCausalLM.from_pretrained(name, dtype=sizes.dtype)\n\n"
    "def unused(chosen, rejected):\n    return torch.cat([chosen, rejected])\n",
    "lib/sizes.py": "import torch\nfrom lib.loading import load\ndtype = torch.bfloat16\n",
    "deep/er/data.py": "def cut(text, tokenizer):\n    return tokenizer(text, max_length=128)\n",
}


@pytest.mark.parametrize(
    "kept", ["import config", "class config:\n    BATCH = 3", "from types import *\nconfig = SimpleNamespace()"]
)
def test_an_attribute_has_the_value_that_it_was_given_last(tmp_path: Path, kept: str) -> None:
    (tmp_path / "config.py").write_text("BATCH = 3\n")
    script = f"{LOAD}{kept}\nmodel = AutoModelForCausalLM.from_pretrained('gpt2')\nconfig.BATCH = 5\n"
    script += "@torch.no_grad()\ndef evaluate():\n    model(x)\n"
    script += f"loader = torch.utils.data.DataLoader(data, batch_size=config.BATCH)\n{TRAIN}    evaluate()\n"
    reading = read(tmp_path, script)
    assert reading.value("training.micro_batch") == 5
    assert not any("may run more than once" in each for each in reading.warnings)


@pytest.mark.parametrize(
    "imports",
    [
        "from config import BATCH\nfrom lib import load\nfrom deep.er.data import cut",
        "from config import *\nfrom lib.loading import load\nfrom deep.er import data\ncut = data.cut",
        "import config as c, lib.loading, deep.er.data\nBATCH, load, cut = c.BATCH, lib.loading.load, deep.er.data.cut",
    ],
)
def test_modules_beside_the_script_are_followed(tmp_path: Path, imports: str) -> None:
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    loader = "loader = torch.utils.data.DataLoader(data.map(cut), batch_size=BATCH)\n"
    reading = read(tmp_path, f"import torch\n{imports}\nmodel = load()\n{loader}{TRAIN}")
    keys = ("model.id", "training.micro_batch", "training.sequence_length", "training.precision")
    assert [reading.value(key) for key in keys] == ["gpt2", 4, 128, "bf16"]
    assert any(each.key == "model.id" and each.origin.startswith("loading.py line 6: ") for each in reading.findings)
    assert not unsure(reading)


def test_a_module_outside_of_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("NAME = 'gpt2'\n")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "secret.py").symlink_to(tmp_path / "secret.py")
    script = f"{LOAD}from secret import NAME\nmodel = AutoModelForCausalLM.from_pretrained(NAME)\n{TRAIN}"
    assert "model.id" in read(inside, script).missing


def test_long_running_scripts_are_followed_to_a_limit(tmp_path: Path) -> None:
    calls = "".join(f"def f{at}():\n" + f"    f{at + 1}()\n" * 4 for at in range(11))
    reading = read(tmp_path, f'{LOAD}{calls}f0()\nmodel = AutoModelForCausalLM.from_pretrained("gpt2")\n{TRAIN}')
    assert any("is too long to follow" in warning for warning in reading.warnings)
    assert unsure(reading)["weights"] == "more"


EVALUATED = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("gpt2")
args = TrainingArguments("out", {}, per_device_train_batch_size=8)
Trainer(model, args, {}).train()
"""


@pytest.mark.parametrize(
    ("settings", "given", "doubt"),
    [
        ("eval_strategy='steps'", "compute_metrics=score", "more"),
        ("eval_strategy='no'", "compute_metrics=score", "no"),
        ("eval_strategy='steps'", "compute_metrics=None", "no"),
        ("eval_strategy='steps', eval_accumulation_steps=4", "compute_metrics=score", "no"),
        ("eval_strategy='steps', batch_eval_metrics=True", "compute_metrics=score", "no"),
        ("eval_strategy='steps'", "compute_metrics=score, preprocess_logits_for_metrics=best", "no"),
    ],
)
def test_logits_that_evaluation_keeps_for_its_metrics(tmp_path: Path, settings: str, given: str, doubt: str) -> None:
    reading = read(tmp_path, EVALUATED.format(settings, given))
    assert unsure(reading).get("logits", "no") == doubt
    assert any("the whole validation set" in each for each in reading.warnings) == (doubt == "more")


def test_text_that_evaluation_generates_is_not_counted(tmp_path: Path) -> None:
    generates = "eval_strategy='steps', predict_with_generate=True"
    reading = read(tmp_path, EVALUATED.format(generates, "compute_metrics=score"))
    assert {"logits", "activations"} & {*unsure(reading)} == {"activations"}
    assert any("Evaluation generates text" in each for each in reading.warnings)
    assert "activations" not in unsure(read(tmp_path, EVALUATED.format(generates, "")))


def test_without_any_word_about_dtypes_the_precision_is_a_doubt(tmp_path: Path) -> None:
    reading = read(tmp_path, "model = build()\nopt = torch.optim.AdamW(model.parameters())\n")
    assert "The dtype of the weights is not set" in " ".join(reading.warnings)


def test_a_batch_that_is_searched_for_is_not_known(tmp_path: Path) -> None:
    script = f"""\
from accelerate.utils import find_executable_batch_size
{LOAD}
model = AutoModelForCausalLM.from_pretrained("gpt2")
@find_executable_batch_size(starting_batch_size=256)
def loop(batch_size, data):
    loader = DataLoader(data, batch_size=batch_size)
    {TRAIN.replace(chr(10), chr(10) + "    ")}
loop([1, 2])
"""
    reading = read(tmp_path, script)
    assert found(reading, "training.micro_batch") == (None,)
    assert any("find_executable_batch_size searches" in each for each in reading.warnings)


def test_adalora_is_not_counted(tmp_path: Path) -> None:
    adapters = "model = get_peft_model(model, AdaLoraConfig(init_r=24, target_r=4))\n"
    script = f'from peft import *\n{LOAD}model = AutoModelForCausalLM.from_pretrained("gpt2")\n{adapters}{TRAIN}'
    warnings = read(tmp_path, script).warnings
    assert any("the trained parameters of AdaLoraConfig are not counted" in each for each in warnings)


def test_a_second_model_is_named_while_it_lives(tmp_path: Path) -> None:
    load = 'teacher = AutoModelForCausalLM.from_pretrained("gpt2-large", dtype=torch.bfloat16).cuda()\n'
    load += 'model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()\n'
    reading = read(tmp_path, f"{LOAD}{load}{TRAIN}")
    held = [{"id": "gpt2-large", "quantization": "none", "dtype": "bf16"}]
    assert found(reading, "model.id", "other_models") == ("gpt2", held)
    assert any("on the GPU beside the trained one; what it computes" in each for each in reading.warnings)
    assert unsure(reading)["logits"] == "more"
    freed = read(tmp_path, f"{LOAD}{load}teacher.cpu()\n{TRAIN}")
    assert found(freed, "model.id", "other_models") == ("gpt2", None)
    assert not any("beside the trained one" in each for each in freed.warnings)


def test_a_script_named_like_a_module_of_python(tmp_path: Path) -> None:
    script = f"from enum import Enum\n{LOAD}class Mode(Enum):\n    HEAD = 'head'\n"
    script += 'model = AutoModelForCausalLM.from_pretrained("gpt2")\n'
    script += f"if Mode.HEAD == Mode.HEAD:\n    model.transformer.requires_grad_(False)\n{TRAIN}"
    (tmp_path / "enum.py").write_text(script)
    reading = read_line(tmp_path, "python enum.py")
    assert any("enum.py line" in each and "which parameters train is not read" in each for each in reading.warnings)
