"""Attaching to stand-ins for training tools with the tools' real command lines, environments and files."""

import base64
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from vramtop.monitor.attach.attachment import Attachment
from vramtop.monitor.attach.read_run import read_run

SLEEPS = "import time\nprint('ready', flush=True)\ntime.sleep(120)\n"
LAUNCHES = """\
import json, pathlib, subprocess, sys
started = [subprocess.Popen(argv, env=env) for argv, env in json.loads(pathlib.Path(sys.argv[0] + ".json").read_text())]
for child in started:
    child.wait()
"""
COPIES_ITSELF = f"""\
import os, subprocess, sys
if "LOCAL_RANK" not in os.environ:
    more = {{"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}}
    subprocess.Popen([sys.executable, *sys.argv], env={{**os.environ, **more}})
{SLEEPS}"""
PYTHON = [sys.executable, "-u"]
Child = tuple[Sequence[str], dict[str, str]]
Run = Callable[..., int]


def torchrun_environment(rank: int, world: int) -> dict[str, str]:
    """Variables that torch.distributed.run adds to a worker's environment."""
    elastic = {"RESTART_COUNT": "0", "MAX_RESTARTS": "0", "RUN_ID": "none", "USE_AGENT_STORE": "True"}
    return {
        **{name: str(rank) for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")},
        **{name: str(world) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")},
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **{f"TORCHELASTIC_{name}": value for name, value in elastic.items()},
    }


def torchrun_workers(argv: Sequence[str], world: int, **more: str) -> list[Child]:
    """Workers of all ranks, as torchrun starts them."""
    return [(argv, {**torchrun_environment(rank, world), **more}) for rank in range(world)]


class Site:
    """Stand-ins for installed packages and commands in the folders of a virtual environment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.packages = root / "venv" / "lib" / "python3.12" / "site-packages"

    def program(self, name: str, text: str = SLEEPS) -> str:
        """Create a module and its packages in site-packages; return its file."""
        path = self.packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.relative_to(self.packages).parents:
            (self.packages / folder / "__init__.py").touch()
        path.write_text(text)
        return str(path)

    def command(self, name: str, text: str = SLEEPS, children: Sequence[Child] = ()) -> list[str]:
        """Create a command in ``bin`` that starts these children; return it as the process list shows it."""
        path = self.root / "venv" / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.starts(path, text, children)
        return [sys.executable, str(path)]

    def starts(self, path: Path, text: str = SLEEPS, children: Sequence[Child] = ()) -> str:
        """Write a program that starts these children, or the one given."""
        inherited = {**os.environ, "PYTHONPATH": str(self.packages)}
        path.write_text(LAUNCHES if children else text)
        families = [(list(argv), {**inherited, **environ}) for argv, environ in children]
        Path(f"{path}.json").write_text(json.dumps(families))
        return str(path)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def run(start: Callable[..., int], site: Site) -> Run:
    """Return a function that starts a command with the packages of ``site``."""

    def start_with_packages(command: Sequence[str], *, ready: int = 1, **environ: str) -> int:
        return start(list(command), ready=ready, PYTHONPATH=str(site.packages), **environ)

    return start_with_packages


def run_processes(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def found(attachment: Attachment, *keys: str) -> list[Any]:
    return [attachment.reading.value(key) for key in keys]


def attach_from_every_process(pid: int, ranks: int) -> Attachment:
    """Return the attachment after checking that every process of the job gives the same one."""
    asked = [read_run(member) for member in run_processes(pid)]
    assert all([rank.local_rank or 0 for rank in each.ranks] == list(range(ranks)) for each in asked)
    assert all(each.ranks == asked[0].ranks and each.reading == asked[0].reading for each in asked)
    return asked[0]


AXOLOTL = """
base_model: gpt2
output_dir: out
sequence_len: 400
micro_batch_size: 2
fsdp_version: 2
fsdp_config: {reshard_after_forward: true}
"""


def axolotl(site: Site) -> list[str]:
    """``axolotl train``, which runs ``accelerate launch``, which starts a worker for each GPU."""
    site.program("axolotl/cli/train.py")
    (site.root / "cfg.yml").write_text(AXOLOTL)
    rest = ["-m", "axolotl.cli.train", "cfg.yml", "--micro-batch-size=4"]
    accelerate = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "no", "OMP_NUM_THREADS": "1"}
    launch = site.command("accelerate", children=torchrun_workers([*PYTHON, *rest], 2, **accelerate))
    outer = site.command("axolotl", children=[([*launch, "launch", *rest], {})])
    return [*outer, "train", "cfg.yml", "--micro-batch-size=4"]


def test_axolotl(run: Run, site: Site) -> None:
    attachment = attach_from_every_process(run(axolotl(site), ready=2), ranks=2)
    assert attachment.launcher == "accelerate"
    evidence = attachment.reading.evidence()
    assert found(attachment, "training.micro_batch", "training.sequence_length") == [4, 400]
    assert evidence["training.micro_batch"] == "--micro-batch-size on the command line"
    assert evidence["training.sequence_length"] == "cfg.yml: sequence_len"
    assert found(attachment, "parallel.strategy", "parallel.data_shard") == ["fsdp2", 2]
    assert evidence["parallel.data_shard"] == "WORLD_SIZE in the environment"
    assert found(attachment, "training.precision") == ["bf16-mixed"]  # its own bf16, not accelerate's "no"


def test_axolotl_resolved_configuration_log(run: Run, site: Site) -> None:
    pid = run(axolotl(site), ready=2)
    resolved = {"base_model": "gpt2", "sequence_len": 999, "micro_batch_size": 9, "output_dir": "out", "bf16": True}
    (site.root / "out").mkdir()
    (site.root / "out" / "debug.log").write_text(f"[INFO] config:\n{json.dumps(resolved, indent=2)}\n[INFO] more\n")
    attachment = read_run(pid)
    assert found(attachment, "training.micro_batch", "training.sequence_length") == [9, 999]
    assert attachment.reading.evidence()["training.micro_batch"] == "debug.log of the run: micro_batch_size"


TUNE = """
output_dir: OUT
model: {_component_: torchtune.models.llama3_1.qlora_llama3_1_8b, lora_rank: 8, lora_attn_modules: [q_proj]}
tokenizer: {max_seq_len: 600}
batch_size: 2
dtype: bf16
"""


def test_torchtune_registry_name(run: Run, site: Site, tmp_path: Path) -> None:
    shipped = Path(site.program("recipes/configs/llama3_1/8B_qlora_single_device.yaml"))
    shipped.write_text(TUNE.replace("OUT", str(tmp_path / "out")))
    arguments = ["--config", "llama3_1/8B_qlora_single_device", "batch_size=5"]
    pid = run([*site.command("tune"), "run", "lora_finetune_single_device", *arguments])
    attachment = read_run(pid)
    keys = ("model.id", "training.micro_batch", "training.sequence_length", "lora.quantization")
    assert found(attachment, *keys) == ["meta-llama/Llama-3.1-8B", 5, 600, "nf4-double"]
    evidence = attachment.reading.evidence()
    assert evidence["training.sequence_length"] == "8B_qlora_single_device.yaml: tokenizer.max_seq_len"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "torchtune_config.yaml").write_text(TUNE.replace("600", "601").replace("OUT", "out"))
    assert found(read_run(pid), "training.sequence_length") == [601]


def test_litgpt_with_ranks_started_by_the_first_rank(run: Run, site: Site) -> None:
    flags = ["--devices", "2", "--train.max_seq_length", "128", "--precision", "bf16-true"]
    line = [*site.command("litgpt", COPIES_ITSELF), "finetune_lora", "checkpoints/org/model", *flags]
    attachment = attach_from_every_process(run(line, ready=2), ranks=2)
    keys = ("model.id", "training.sequence_length", "parallel.strategy", "parallel.data_shard", "training.precision")
    assert found(attachment, *keys) == ["org/model", 128, "fsdp2", 2, "bf16"]
    assert found(attachment, "training.activation_checkpointing", "training.gradient_accumulation") == ["full", 8]


def test_deepspeed_launcher(run: Run, site: Site) -> None:
    script = site.starts(site.root / "train.py")
    zero = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto"}
    (site.root / "ds.json").write_text(json.dumps(zero))
    flags = ["--deepspeed", "ds.json", "--model_name_or_path", "gpt2", "--bf16", "--max_length", "128"]
    flags += ["--per_device_train_batch_size", "3"]
    places = {"WORLD_SIZE": "2", "LOCAL_SIZE": "2", "CROSS_RANK": "0", "CROSS_SIZE": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    children = [
        ([*PYTHON, script, f"--local_rank={rank}", *flags], {"RANK": str(rank), "LOCAL_RANK": str(rank), **places})
        for rank in range(2)
    ]
    world = base64.urlsafe_b64encode(json.dumps({"localhost": [0, 1]}).encode()).decode()
    launch = site.program("deepspeed/launcher/launch.py")
    site.starts(Path(launch), children=children)
    inner = [*PYTHON, "-m", "deepspeed.launcher.launch", f"--world_info={world}", "--master_addr=127.0.0.1"]
    inner += ["--master_port=29500", "--enable_each_rank_log=None", script, *flags]
    outer = site.command("deepspeed", children=[(inner, {})])
    attachment = attach_from_every_process(run([*outer, "--num_gpus=2", "train.py", *flags], ready=2), ranks=2)
    assert attachment.launcher == "deepspeed"
    assert [rank.gpu_hint for rank in attachment.ranks] == ["0", "1"]
    keys = ("parallel.strategy", "parallel.data_shard", "training.micro_batch", "training.precision")
    assert found(attachment, *keys) == ["zero2", 2, 3, "bf16-mixed"]
    assert attachment.reading.evidence()["parallel.strategy"] == "ds.json: zero_optimization.stage"
