"""The launch line of a shell script, read as data."""

import shlex
from pathlib import Path

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.readers.launch_line import launch_of_shell_script
from vramtop.estimator.readers.source.shell_script import ScriptLaunch


def launched(folder: Path, text: str, line: str = "bash run.sh", **environ: str) -> ScriptLaunch:
    (folder / "run.sh").write_text(text)
    found = launch_of_shell_script(shlex.split(line), environ=environ, cwd=folder)
    assert found is not None
    return found


SLURM = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=4   # all of it
cd "$(dirname "$0")/train"
srun python train.py --nodes $SLURM_NNODES
"""
ARRAY = """\
MODEL=${1:-gpt2}
ARGS=(
  --model_name_or_path $MODEL  # the model
  --bf16
)
ARGS+=(--max_length 512)
accelerate launch train.py "${ARGS[@]}" \\
  --output_dir "out/$(date +%F)" 2>&1 | tee train.log &
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python train.py --bf16", "python train.py --bf16"),
        ("export CUDA_VISIBLE_DEVICES=0,1\ntorchrun train.py", "CUDA_VISIBLE_DEVICES=0,1 torchrun train.py"),
        ("A=${A:-4} && python train.py --a $A > log.txt 2>&1", "python train.py --a 4"),
        ("for s in 1 2; do python train.py --seed $s; done", "python train.py --seed $s"),
        ('if [ ! -f "train.py" ]; then exit 1; fi\necho train.py\npython train.py --a 1', "python train.py --a 1"),
        ("pip install x\npython prepare.py\ntorchrun train.py", "torchrun train.py"),
        ("cat <<END\npython other.py\nEND\npython train.py", "python train.py"),
        ("set -e\nwhile true; do python train.py; done", "python train.py"),
        ('python train.py --a 1 "$@"', "python train.py --a 1"),
        ('C="torchrun train.py"\neval "${C}"', "torchrun train.py"),
        ('C="python train.py"\nsrun bash -c "$C --bf16"', "srun python train.py --bf16"),
        ('#SBATCH --gres="gpu:a100:2"\naccelerate launch train.py', "SLURM_GPUS_ON_NODE=2 accelerate launch train.py"),
        (
            ARRAY,
            "accelerate launch train.py --model_name_or_path gpt2 --bf16 --max_length 512 --output_dir 'out/$(...)'",
        ),
        ("A=4\nB=$((32/$A/2))\nC=$(((B + 1) * ${A} % 7))\npython x.py --b $B --c $C", "python x.py --b 4 --c 6"),
        ("A=4\npython x.py --b $(expr 32 / $A) --c `expr $A \\* 2`", "python x.py --b 8 --c 8"),
        (SLURM, "srun --nodes=2 --ntasks-per-node=4 python train.py --nodes 2"),
    ],
)
def test_the_line_is_found_with_its_values(tmp_path: Path, text: str, words: str) -> None:
    found = launched(tmp_path, text)
    assert [*found.words] == shlex.split(words)
    assert found.folder.resolve() == (tmp_path / "train" if text is SLURM else tmp_path)


@pytest.mark.parametrize("before", ["A=${A:-''}\n", "for A in 1 2; do ", "A=$(wc -l x)\n"])
def test_a_value_that_is_asked_for_can_be_given(tmp_path: Path, before: str) -> None:
    assert launched(tmp_path, f"{before}python train.py --a $A", A="4").words[-1] == "4"


def test_arguments_variables_and_called_scripts_count(tmp_path: Path) -> None:
    (tmp_path / "inner.sh").write_text("python train.py --model_name_or_path $1 --b ${B}\n")
    found = launched(tmp_path, "export B=2\nbash inner.sh gpt2\n", "X=1 bash run.sh")
    assert found.words == ("X=1", "B=2", "python", "train.py", "--model_name_or_path", "gpt2", "--b", "2")
    assert found.note == "The launch line is inner.sh, line 1."
    assert launched(tmp_path, "python train.py --a $A", "./run.sh", A="7").words[-1] == "7"
    assert launched(tmp_path, "python train.py $@", "bash run.sh --a 'b c'").words[-2:] == ("--a", "b c")


OPTIONS = """\
while [ $# -gt 0 ]; do
  case "$1" in
    -b|--bsz) bsz="$2"; shift 2 ;;
    --length) length="$2"; shift 2 ;;
  esac
done
python train.py --b ${bsz:-1} --l ${length:-2048}
"""
GETOPTS = """\
while getopts "b:" option; do
  case $option in b) bsz=$OPTARG ;; esac
done
python train.py --b ${bsz:-1}
"""


def test_arguments_that_a_script_goes_through_are_taken_in_order_or_asked_for(tmp_path: Path) -> None:
    shifted = "bsz=$1\nshift\npython train.py --b $bsz --l $1"
    assert launched(tmp_path, shifted, "bash run.sh 4 512").words[2:] == ("--b", "4", "--l", "512")
    for text, line in ((OPTIONS, "bash run.sh --length 64"), (GETOPTS, "bash run.sh -b 4")):
        with pytest.raises(InputError, match=r"the value of .*bsz.* is not known; give bsz=VALUE"):
            launched(tmp_path, text, line)
        assert launched(tmp_path, text, "bash run.sh").words[2:4] == ("--b", "1")
    given = launched(tmp_path, OPTIONS, "bash run.sh --bsz 2", bsz="2", length="64")
    assert given.words[2:] == ("--b", "2", "--l", "64")


def test_other_programs_are_named(tmp_path: Path) -> None:
    found = launched(tmp_path, "python prepare.py\ntorchrun train.py\npython eval.py\n")
    assert found.note == "The launch line is run.sh, line 2; not counted: lines 1, 3."


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("python train.py --model $MODEL", "run.sh, line 1: the value of $MODEL is not known; give MODEL=VALUE before"),
        ("python train.py --model $1", "give its arguments after it, as in vramtop fit -- bash run.sh VALUE"),
        ("N=$(nvidia-smi -L | wc -l)\ntorchrun --nproc_per_node $N train.py", "the value of $N is not known"),
        ("B=$((8 / ($A * 2)))\npython train.py --b $B", "run.sh, line 2: the value of $B is not known"),
        ("A=0; B=$((8 / A))\npython train.py --b $B", "run.sh, line 2: the value of $B is not known"),
        ("M=a\nif [ $X ]; then M=b; fi\npython train.py --model $M", "the value of $M is not known"),
        ("[ $X ] && M=a || M=b\npython train.py --model $M", "the value of $M is not known"),
        ("python a.py\npython b.py", "run.sh starts several programs (lines 1, 2); give one of them after --"),
        ("if [ $1 ]; then deepspeed a.py --x; else python a.py; fi", "run.sh starts several programs (lines 1, 1)"),
        ("echo hello", "run.sh is a shell script that starts no Python program that vramtop can read"),
        ("bash run.sh", "scripts call other scripts"),
        ("A=1234567890\n" + "A=$A$A\n" * 40 + "python train.py", "its variables are too long"),
    ],
)
def test_what_only_running_it_would_tell_is_refused(tmp_path: Path, monkeypatch, text: str, sentence: str) -> None:
    monkeypatch.setattr("vramtop.estimator.readers.source.shell_script._MAX_FILLED_IN", 2**14)
    with pytest.raises(InputError) as failed:
        launched(tmp_path, text)
    assert sentence in failed.value.message


@pytest.mark.parametrize(
    "line", ["python train.py", "bash", "bash -c 'python train.py'", "torchrun run.py", "./none.sh"]
)
def test_other_lines_run_no_shell_script(tmp_path: Path, line: str) -> None:
    assert launch_of_shell_script(shlex.split(line), environ={}, cwd=tmp_path) is None


def test_a_value_that_only_a_start_needs_is_a_sentence(tmp_path: Path) -> None:
    found = launched(tmp_path, "for i in 1 2; do\n  python train.py --lr ${i}e-5 --batch 4\ndone\n")
    assert found.words[:2] == ("python", "train.py")
    assert found.unknown is not None
    assert "line 2: the value of ${i} is not known; give i=VALUE before vramtop" in found.unknown
    assert launched(tmp_path, "python train.py --lr 1e-5\n").unknown is None
