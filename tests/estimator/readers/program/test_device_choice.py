"""The GPUs that a launch line, its launcher, a container or the script itself chooses."""

import shlex
from pathlib import Path

import pytest

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import DeviceChoice

ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\ngpu_ids: {}\nnum_processes: 1\n"


def choice(folder: Path, line: str | list[str], script: str = "import os\n") -> DeviceChoice | None:
    files = {"t.py": script, "two.yaml": ACCELERATE.format("2"), "all.yaml": ACCELERATE.format("all")}
    for name, text in files.items():
        (folder / name).write_text(text)
    words = shlex.split(line) if isinstance(line, str) else line
    return read_launch(words, environ={"HOME": str(folder)}, cwd=folder, versions={}).devices


@pytest.mark.parametrize(
    ("line", "visible", "origin"),
    [
        ("env CUDA_VISIBLE_DEVICES=1 python t.py", "1", "CUDA_VISIBLE_DEVICES in the launch line"),
        ("srun --export=ALL,CUDA_VISIBLE_DEVICES=2 python t.py", "2", "CUDA_VISIBLE_DEVICES in the launch line"),
        ("srun --gpus 1 env CUDA_VISIBLE_DEVICES=2 python t.py", "2", "CUDA_VISIBLE_DEVICES in the launch line"),
        (["export A=1 CUDA_VISIBLE_DEVICES=2; cd x; python t.py"], "2", "CUDA_VISIBLE_DEVICES in the launch line"),
        (
            ["bash", "-c", "export CUDA_VISIBLE_DEVICES=3 && python t.py"],
            "3",
            "CUDA_VISIBLE_DEVICES in the launch line",
        ),
        ("env CUDA_VISIBLE_DEVICES=0 accelerate launch --gpu_ids 1,2 t.py", "1,2", "--gpu_ids of accelerate"),
        ("accelerate launch --config_file two.yaml t.py", "2", "two.yaml: gpu_ids"),
        ("trl sft --gpu_ids 1 --model_name_or_path gpt2", "1", "--gpu_ids of trl"),
        ("deepspeed --include localhost:1,2 t.py", "1,2", "--include of deepspeed"),
        ("env CUDA_VISIBLE_DEVICES=5 deepspeed --num_gpus 2 t.py", "0,1", "--num_gpus of deepspeed"),
    ],
)
def test_choices_of_lines_and_launchers(tmp_path: Path, line: str | list[str], visible: str, origin: str) -> None:
    found = choice(tmp_path, line)
    assert found is not None
    assert (found.visible, found.origin, found.is_known) == (visible, origin, True)


@pytest.mark.parametrize(
    ("line", "container"),
    [
        ("""docker run --rm --gpus '"device=1,3"' image python t.py""", "1,3"),
        ("docker run --gpus device=1 image python t.py", "1"),
        ("docker run --gpus=2 image python t.py", "0,1"),
        ("podman run --device nvidia.com/gpu=2 image python t.py", "2"),
        ("docker run -e NVIDIA_VISIBLE_DEVICES=3 image python t.py", "3"),
        ("docker run --gpus device=2,3 -e CUDA_VISIBLE_DEVICES=1 image python t.py", "2,3"),
    ],
)
def test_gpus_of_containers(tmp_path: Path, line: str, container: str) -> None:
    found = choice(tmp_path, line)
    assert found is not None
    assert (found.container, found.visible) == (container, "1" if "CUDA_" in line else None)


@pytest.mark.parametrize(
    "line",
    [
        "python t.py",
        "accelerate launch --config_file all.yaml t.py",
        "docker run --gpus all image python t.py",
        "srun -n 1 python t.py",
        "torchrun --nproc_per_node 2 t.py",
    ],
)
def test_lines_without_a_choice(tmp_path: Path, line: str) -> None:
    assert choice(tmp_path, line) is None


@pytest.mark.parametrize(
    ("line", "origin"),
    [
        ("srun --gpus=1 python t.py", "--gpus of srun"),
        ("env CUDA_VISIBLE_DEVICES=0 srun --gres gpu:1 python t.py", "--gres of srun"),
        ("docker compose run by_id python t.py", "docker compose in the launch line"),
        ("deepspeed --include a:0@b:1 t.py", "--include of deepspeed"),
        (["CUDA_VISIBLE_DEVICES=$GPU python t.py"], "CUDA_VISIBLE_DEVICES in the launch line"),
    ],
)
def test_choices_that_only_the_start_decides(tmp_path: Path, line: str | list[str], origin: str) -> None:
    found = choice(tmp_path, line)
    assert found is not None
    assert (found.origin, found.is_known) == (origin, False)


@pytest.mark.parametrize(
    ("statement", "line", "visible"),
    [
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '1'", "python t.py", "1"),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '1'", "env CUDA_VISIBLE_DEVICES=0 python t.py", "1"),
        ("os.environ.setdefault('CUDA_VISIBLE_DEVICES', '1')", "python t.py", "1"),
        ("os.environ.setdefault('CUDA_VISIBLE_DEVICES', '1')", "env CUDA_VISIBLE_DEVICES=0 python t.py", "0"),
        ("os.environ.update({'CUDA_VISIBLE_DEVICES': '2'})", "python t.py", "2"),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = pick()", "python t.py", None),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']", "torchrun --nproc_per_node 4 t.py", None),
    ],
)
def test_choices_of_scripts(tmp_path: Path, statement: str, line: str, visible: str | None) -> None:
    found = choice(tmp_path, line, f"import os\nfrom somewhere import pick\n{statement}\n")
    assert found is not None
    assert (found.visible, found.is_known) == (visible, visible is not None)
    assert found.origin == ("CUDA_VISIBLE_DEVICES in the launch line" if visible == "0" else found.origin)


LOADED = "from transformers import *\nimport torch\nmodel = AutoModelForCausalLM.from_pretrained('gpt2'{})\n"


@pytest.mark.parametrize(
    ("script", "line", "index"),
    [
        (LOADED.format("") + "model.to('cuda:1')\n", "python t.py", 1),
        (LOADED.format("") + "model.to(torch.device('cuda:2'))\n", "env CUDA_VISIBLE_DEVICES=3,2,1 python t.py", 2),
        (LOADED.format("") + "model.cuda(1)\n", "python t.py", 1),
        (LOADED.format(", device_map={'': 3}"), "python t.py", 3),
        ("import torch\ntorch.cuda.set_device(1)\n", "python t.py", 1),
        (LOADED.format("") + "torch.cuda.set_device(1)\nmodel.cuda()\n", "python t.py", 1),
        (LOADED.format("") + "model.to('cuda:0')\n", "python t.py", None),
        (LOADED.format("") + "model.to('cuda')\ncopy = torch.nn.Linear(1, 1).to('cuda:1')\n", "python t.py", None),
        (
            LOADED.format("") * 2 + "other = model\nother.to('cuda:1')\n" + LOADED.format("") + "model.cuda()\n",
            "python t.py",
            None,
        ),
        (LOADED.format("") + "model.to('cuda:1')\n", "torchrun --nproc_per_node 4 t.py", None),
    ],
)
def test_a_script_names_a_gpu_among_those_that_it_sees(tmp_path: Path, script: str, line: str, index: int) -> None:
    found = choice(tmp_path, line, script)
    assert (None if found is None else found.index) == index
    assert index != 2 or (found is not None and found.visible == "3,2,1")
