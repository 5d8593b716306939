"""A script that only starts a training tool is read as that tool."""

import shlex
from pathlib import Path

import pytest

from vramtop.estimator.readers.launch_line import read_launch, tool_of_line
from vramtop.estimator.readers.source.evidence import JobReading

FACTORY = "model_name_or_path: org/model\nfinetuning_type: lora\nlora_rank: 5\ncutoff_len: 700\n"
FACTORY += "per_device_train_batch_size: 3\n"
AXOLOTL = "base_model: org/model\nsequence_len: 700\nmicro_batch_size: 3\nadapter: lora\nlora_r: 5\n"
RUN_EXP = "from llamafactory.train.tuner import run_exp\n"
GUARDED = "def main():\n    {}\n\nif __name__ == '__main__':\n    main()\n"
SWIFT = "--model org/model --tuner_type lora --lora_rank 5 --max_length 700 --per_device_train_batch_size 3"
AUTOMODEL = """step_scheduler: {local_batch_size: 3}
model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path: org/model}
packed_sequence: {packed_sequence_size: 700}
peft: {_target_: nemo_automodel.components._peft.lora.PeftConfig, dim: 5}
"""
LITGPT = "checkpoint_dir: checkpoints/org/model\nlora_r: 5\ntrain: {micro_batch_size: 3, max_seq_length: 700}\n"
TRL = "sft --model_name_or_path org/model --use_peft --lora_r 5 --max_length 700 --per_device_train_batch_size 3"


def read(folder: Path, line: str, script: str | None = None) -> JobReading:
    files = {"factory.yaml": FACTORY, "axolotl.yml": AXOLOTL, "automodel.yaml": AUTOMODEL, "litgpt.yaml": LITGPT}
    for name, text in {**files, **({} if script is None else {"start.py": script})}.items():
        (folder / name).write_text(text)
    return read_launch(shlex.split(line), environ={}, cwd=folder, versions={})


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        (RUN_EXP + GUARDED.format("run_exp()"), "factory.yaml"),
        ("from llmtuner import run_exp\nrun_exp()\n", "factory.yaml"),
        ("import os\nimport llamafactory.cli as cli\nos.putenv('A', 'b')\ncli.main()\n", "train factory.yaml"),
        ("import fire\nfrom axolotl.cli.train import do_cli\n" + GUARDED.format("fire.Fire(do_cli)"), "axolotl.yml"),
        ("import sys\nfrom axolotl.cli.train import do_cli\nsys.exit(do_cli())\n", "axolotl.yml"),
        ("from swift.llm import sft_main\nresult = sft_main()\n", SWIFT),
        ("from nemo_automodel.components.config._arg_parser import parse_args_and_load_config\n"
         "from nemo_automodel.recipes.llm.train_ft import TrainFinetuneRecipeForNextTokenPrediction\n"
         "def main(default='x.yaml'):\n"
         "    cfg = parse_args_and_load_config(default)\n"
         "    recipe = TrainFinetuneRecipeForNextTokenPrediction(cfg)\n    recipe.setup()\n"
         "    recipe.run_train_validation_loop()\nmain()\n", "--config automodel.yaml"),
        ("from litgpt.__main__ import main\nmain()\n", "finetune_lora --config litgpt.yaml"),
        ("from trl.cli import main\nmain()\n", TRL),
    ],
)  # fmt: skip
def test_entry_functions_of_tools(tmp_path: Path, script: str, arguments: str) -> None:
    reading = read(tmp_path, f"torchrun --nproc_per_node 2 start.py {arguments}", script)
    assert str(reading.value("model.id")).endswith("org/model")
    found = [reading.value(key) for key in ("training.micro_batch", "training.sequence_length", "lora.rank")]
    assert found == [3, 700, 5]
    assert not any("start.py" in warning or "not read" in warning for warning in reading.warnings)


def test_the_job_is_that_of_the_tools_own_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = "torchrun --nproc_per_node 1 start.py factory.yaml"
    reading = read(tmp_path, line, RUN_EXP + GUARDED.format("run_exp()"))
    assert reading.job() == read(tmp_path, "env NPROC_PER_NODE=1 llamafactory-cli train factory.yaml").job()
    assert tool_of_line(line.split()) == "LLaMA-Factory"


OTHER = "script code other than run_exp is not counted."
SETTINGS = "run_exp gets settings that vramtop cannot read."


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("patch_everything()\nrun_exp()\n", f"2: {OTHER}"),
        ("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '3'\nrun_exp()\n", f"3: {OTHER}"),
        ("import sys\nsys.argv = ['x', 'y.yaml']\nrun_exp()\n", f"3: {OTHER}"),
        ("if choose():\n    patch()\nrun_exp()\n", f"2: {OTHER}"),
        ("settings = dict(lora_rank=5)\nrun_exp(settings)\n", f"3: {SETTINGS}"),
        ("run_exp(make_settings())\n", f"2: {SETTINGS}"),
        ("def main(args):\n    run_exp(args)\nmain(1)\n", f"3: {SETTINGS}"),
    ],
)
def test_what_is_not_followed_is_named(tmp_path: Path, body: str, sentence: str) -> None:
    reading = read(tmp_path, "python start.py factory.yaml", RUN_EXP + body)
    assert f"start.py:{sentence}" in reading.warnings
    assert reading.job().unsure.weights == reading.job().unsure.activations == "either"


def test_a_script_that_starts_no_tool_is_read_as_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    read(tmp_path, "python start.py factory.yaml", "import llamafactory\n")
    assert tool_of_line(["python", "start.py", "factory.yaml"]) == "transformers"


@pytest.mark.parametrize(
    ("line", "tool"),
    [
        ("torchrun --nproc_per_node 1 src/train.py factory.yaml", "LLaMA-Factory"),
        (
            "python src/train_bash.py --model_name_or_path org/model --finetuning_type lora --lora_rank 5",
            "LLaMA-Factory",
        ),
        ("accelerate launch scripts/finetune.py axolotl.yml", "axolotl"),
        ("torchrun examples/llm_finetune/finetune.py --config automodel.yaml", "Automodel"),
        ("torchrun src/train.py axolotl.yml", None),
        ("torchrun other/train.py factory.yaml", None),
    ],
)
def test_scripts_that_are_not_here_are_known_by_path_and_settings(tmp_path: Path, line: str, tool: str | None) -> None:
    reading = read(tmp_path, line)
    noted = [each for each in reading.warnings if "vramtop assumes the one of" in each]
    assert len(noted) == (tool is not None)
    assert all(str(tool) in each for each in noted)
    assert reading.value("lora.rank") == 5


@pytest.mark.parametrize(("script", "length", "transformers"), [("train_bash", 1024, "4.40"), ("train", 2048, None)])
def test_the_version_of_a_script_that_is_not_here_is_that_which_has_it(
    tmp_path: Path, script: str, length: int, transformers: str | None
) -> None:
    line = f"python src/{script}.py --model_name_or_path org/model --finetuning_type lora --lora_rank 5"
    reading = read(tmp_path, line)
    assert reading.value("training.sequence_length") == length
    assert reading.value("software.transformers") == transformers
    assert read(tmp_path, f"{line} --cutoff_len 4096").value("training.sequence_length") == 4096
