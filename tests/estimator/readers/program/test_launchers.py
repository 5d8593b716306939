import shlex

import pytest

from vramtop.estimator.readers.tools.tool_registry import find_program_index, parse_launch, split_launch_line


@pytest.mark.parametrize(
    ("line", "launchers", "program"),
    [
        ("conda run -n trl python train.py", (), "train.py"),
        ("conda run -n accelerate accelerate launch train.py", ("accelerate",), "train.py"),
        ("uv run --with deepspeed train.py", (), "train.py"),
        ("uv run -p python3.12 train.py", (), "train.py"),
        ("srun -n 8 trl sft --model_name_or_path gpt2", ("trl",), "trl.scripts.sft"),
        ("ls trl", (), None),
        ("python -m debugpy --listen 5678 train.py --lr 1", (), "train.py"),
        ("python -m coverage", (), None),
    ],
)
def test_the_program_behind_wrappers_is_found(line: str, launchers: tuple[str, ...], program: str | None) -> None:
    launch = parse_launch(shlex.split(line))
    assert (launch.launchers, launch.program_name) == (launchers, program)


def test_the_position_of_a_program_shows_whether_it_is_wrapped() -> None:
    assert find_program_index(["python", "train.py"]) == 0
    assert find_program_index(["timeout", "1h", "python", "train.py"]) == 2
    assert find_program_index(["A=1", "env", "B=x.py", "torchrun", "train.py"]) == 3
    assert find_program_index(["bash"]) is None


@pytest.mark.parametrize(
    ("pasted", "words"),
    [
        ("python train.py \\\n  --a 1 \\\n  --b 'x y' > log 2>&1 &", "python train.py --a 1 --b 'x y'"),
        ("cd /x && A=0 torchrun --nproc_per_node 2 t.py --x | tee log", "A=0 torchrun --nproc_per_node 2 t.py --x"),
        ("source x/activate; nohup accelerate launch t.py --lr 2e-5 2> e", "nohup accelerate launch t.py --lr 2e-5"),
        ("python t.py --x 'open", '"python t.py --x \'open"'),
    ],
)
def test_a_line_pasted_as_one_word_is_split(pasted: str, words: str) -> None:
    assert split_launch_line([pasted]) == shlex.split(words)


@pytest.mark.parametrize(
    ("wrapper", "ranks"),
    [
        ("srun -n 3", 3),
        ("srun --ntasks=3 --ntasks-per-node=8", 3),
        ("srun --nodes=2 --ntasks-per-node=4", 8),
        ("srun -N 2 --ntasks-per-node 4", 8),
        ("srun --ntasks-per-node=4", 4),
        ("srun --nodes=$N --ntasks-per-node=4", None),
        ("mpirun -np 4 --bind-to none", 4),
    ],
)
def test_tasks_of_a_wrapper_are_ranks(wrapper: str, ranks: int | None) -> None:
    found = parse_launch(f"{wrapper} python train.py".split()).options.get("num_processes")
    assert (None if found is None else int(found.value)) == ranks


def test_torchrun_takes_the_beginnings_of_its_flags() -> None:
    options = parse_launch(shlex.split("torchrun --nproc_per=8 --nnode 4 --node_rank 0 train.py")).options
    assert (options["nproc_per_node"].value, options["nnodes"].value) == ("8", "4")
