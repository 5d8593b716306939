"""``vramtop --once``: every line names its figures, and the output is plain text outside a terminal."""

import time

import pytest
from builders import make_board, make_gpu, make_process, make_run, make_snapshot, make_watchlist
from command_line import vramtop

from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec
from vramtop.tui.cli.board_json import board_json
from vramtop.tui.cli.board_text import board_lines
from vramtop.tui.cli.display_options import display_filter
from vramtop.tui.cli.main import build_parser
from vramtop.tui.draw.text_output import TextOutput


@pytest.fixture
def board():
    job = Job(name="sft", model=ModelSpec(id="meta-llama/Llama-3.1-8B"))
    watchlist = make_watchlist(make_run(job, 1), pending=[Job(name="next", model=job.model)])
    processes = [make_process(1, 61.5, command="python train.py " + 60 * "--flag "), make_process(2, None, user=None)]
    gpus = [make_gpu(0, processes), make_gpu(1, utilisation_percent=None, power_w=None, temperature_c=None)]
    return watchlist.update(make_snapshot(gpus, time=time.time()))


def once_lines(board, **changes) -> list[str]:
    shape = {"colour_depth": "none", "ascii_only": False, "width": 100, "unlimited_width": True} | changes
    return [" ".join(line.split()) for line in board_lines(board, TextOutput(**shape))]


def test_each_line_is_complete_by_itself(board) -> None:
    lines = once_lines(board)
    assert lines[0] == "gpubox-3, driver 580.95, CUDA 13.0, 2 GPUs"
    assert lines[1] == "GPU 0 NVIDIA H100 80GB HBM3 62.5 of 80.0 GiB in use 17.0 free util 98 % 412 W 63 C"
    assert "GPU 1 NVIDIA H100 80GB HBM3 1.0 of 80.0 GiB in use 78.5 free util n/a W n/a C n/a" in lines
    assert any(line.startswith("pid 1 ana GPU 0 61.5 GiB budget 40.0 OVER python train.py --flag") for line in lines)
    assert any(line.startswith("pid 2 user n/a GPU 0 memory n/a") for line in lines)
    assert any(line.startswith("GPU 0 1.0 GiB n/a processes and unattributed") for line in lines)
    assert any(line.startswith("pending next: FITS: ") for line in lines)


def test_the_output_has_no_drawing_characters(board) -> None:
    drawn = "·│├┤─█▓░▲✓"
    assert not [sign for line in once_lines(board) for sign in line if sign in drawn]


def test_long_lines_are_cut_on_a_terminal_and_kept_in_a_pipe(board) -> None:
    assert (
        max(map(len, board_lines(board, TextOutput(colour_depth="none", ascii_only=False, width=80)))) <= 90
    )  # the GPUs' lines
    assert any(line.count("--flag") == 60 for line in once_lines(board))


@pytest.mark.parametrize(("width", "status"), [(80, "incomplete"), (120, "incomplete: training.sequence_length")])
def test_a_narrow_terminal_shows_which_program_a_process_runs_and_no_memory_of_0_gib(width: int, status: str) -> None:
    run = make_run("tune", 1, missing=("training.sequence_length",))
    gpu = make_gpu(0, [make_process(1, 40, command="python train.py")], used_bytes=40 * 2**30 + 50_000_000)
    board = make_board([gpu], run)
    lines = once_lines(board, width=width, unlimited_width=False)
    assert lines[3:] == [f"pid 1 ana GPU 0 40.0 GiB budget ?40.0 {status} python train.py"]


def test_the_command_line_chooses_what_is_displayed_and_what_is_hidden_is_said() -> None:
    options = build_parser().parse_args(["--once", "--user", "ana,bo", "--gpu", "0,2-3"])
    processes = [make_process(1, 60), make_process(2, 8, user="eve"), make_process(3, 4, user="bo")]
    gpus = [make_gpu(0, processes), make_gpu(1, [make_process(4, 7)]), make_gpu(2), make_gpu(3)]
    board = make_board(gpus, display_filter=display_filter(options))
    lines = once_lines(board)
    assert [line[:6] for line in lines if line.startswith("GPU") and "in use" in line] == ["GPU 0 ", "GPU 2 ", "GPU 3 "]
    assert "GPU 0 NVIDIA H100 80GB HBM3 73.0 of 80.0 GiB in use 6.5 free util 98 % 412 W 63 C" in lines
    assert {line.split()[1] for line in lines if line.startswith("pid")} == {"1", "3"}
    assert "GPU 0 8.0 GiB 1 hidden by --user ana,bo --gpu 0,2-3" in lines
    read = board_json(board)
    assert [gpu["index"] for gpu in read["gpus"]] == [0, 2, 3]
    assert [process["pid"] for process in read["gpus"][0]["processes"]] == [1, 3]
    assert read["filter"] == {
        "options": "--user ana,bo --gpu 0,2-3",
        "hidden_gpus": ["1"],
        "hidden_processes": 2,
        "hidden_used_bytes": 15 * 2**30,
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gpu", "x"], "'x' is not a GPU: give indices, ranges, MIG devices or uuids"),
        (["--user", "ana,,bo"], "'ana,,bo' is not a list of users"),
    ],
)
def test_a_mistyped_choice_is_one_sentence(arguments, sentence, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        build_parser().parse_args(["--once", *arguments])
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_before_a_command_they_are_refused() -> None:
    err = vramtop("--gpu", "0", "fit", "llama-3.1-8b", code=2).err
    assert "--gpu 0 filters the dashboard and --once; put it behind fit" in err
    assert vramtop("--user", "ann", "doctor", code=2).err.endswith("--user ann filters the dashboard and --once\n")
