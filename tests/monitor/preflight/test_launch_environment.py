"""The interpreter, environment and local ranks of a launch line."""

import sys
from pathlib import Path

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job, Parallel
from vramtop.monitor.preflight.job_launch import count_local_ranks, find_job_interpreter, job_environment


@pytest.fixture
def env(tmp_path: Path) -> Path:
    """A virtual environment's ``bin``, with its Python and console scripts."""
    folder = tmp_path / "env" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(sys.executable)
    (folder / "python3").symlink_to("python")
    script(folder / "torchrun", f"#!{folder}/python\nimport torch\n")
    script(folder / "accelerate", f"#!/bin/sh\n'''exec' \"{folder}/python\" \"$0\" \"$@\"\n' '''\n")
    script(folder / "deepspeed", "#!/usr/bin/env python3\n")
    script(folder / "trl", "#!/usr/bin/perl\n")
    return folder


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("words", "python"),
    [
        (["python", "train.py"], "python"),
        (["torchrun", "--nproc_per_node", "2", "train.py"], "python"),
        (["accelerate", "launch", "train.py"], "python"),
        (["deepspeed", "train.py"], "python3"),
        (["nohup", "torchrun", "train.py"], "python"),
        (["torchrun --nproc_per_node 2 train.py"], "python"),
    ],
)
def test_the_python_of_a_launch_line(env: Path, words: list[str], python: str) -> None:
    found = find_job_interpreter(None, words, {"PATH": str(env)})
    assert (found.path, found.is_certain) == (env / python, True)


def test_a_program_given_by_path_is_not_searched(env: Path) -> None:
    found = find_job_interpreter(None, [f"{env}/torchrun", "train.py"], {})
    assert (found.path, found.origin) == (env / "python", f"{env}/torchrun")


@pytest.mark.parametrize(
    "words", [["trl", "sft", "--model_name_or_path", "x"], ["uv", "run", "torchrun", "train.py"], ["./train.py"], None]
)
def test_the_active_environment_is_used_if_a_line_names_no_python(env, tmp_path, words) -> None:
    active = find_job_interpreter(None, words, {"PATH": str(env), "VIRTUAL_ENV": str(env.parent)})
    assert (active.path, active.origin, active.is_certain) == (env / "python", "VIRTUAL_ENV", True)
    own = find_job_interpreter(None, words, {"PATH": str(env)})
    assert (own.path, own.is_certain) == (Path(sys.executable), False)


def test_the_python_named_by_the_user_takes_precedence(env: Path, tmp_path: Path) -> None:
    found = find_job_interpreter(str(env.parent), ["python", "train.py"], {})
    assert (found.path, found.origin) == (env / "python", "--python")
    with pytest.raises(InputError):
        find_job_interpreter(str(tmp_path / "gone"), None, {})


def test_assignments_before_a_command_set_the_environment() -> None:
    line = ["CUDA_VISIBLE_DEVICES=2,3 torchrun --nnodes 2 --rdzv_endpoint=node1:29400 train.py"]
    found = job_environment({"HOME": "/home/ana", "CUDA_VISIBLE_DEVICES": "0"}, line)
    assert found == {"HOME": "/home/ana", "CUDA_VISIBLE_DEVICES": "2,3"}
    assert job_environment({"A": "b"}, None) == {"A": "b"}


def test_ranks_on_one_machine(tmp_path: Path) -> None:
    job = Job(parallel=Parallel(strategy="ddp", data_replicate=16))

    def ranks(line: str | None, **environ: str) -> int | None:
        return count_local_ranks(job, None if line is None else [line], environ, tmp_path)

    assert ranks("torchrun --nnodes 2 --nproc_per_node 8 train.py") == 8
    assert ranks("torchrun --nproc_per_node 16 train.py") == 16
    assert ranks("torchrun --nproc_per_node 8 train.py") is None  # not this job's ranks
    assert ranks(None) is None
    assert ranks(None, SLURM_NNODES="4") == 4
    assert ranks(None, SLURM_NNODES="3") is None
    (tmp_path / "fsdp.yaml").write_text("num_processes: 16\nnum_machines: 2\ndistributed_type: FSDP\n")
    assert ranks("accelerate launch --config_file fsdp.yaml train.py") == 8
    assert ranks("accelerate launch --config_file gone.yaml train.py") is None
