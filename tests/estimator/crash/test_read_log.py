"""Job logs as launchers write them: ranks, wrapped and repeated messages, killed processes, any length and encoding."""

# ruff: noqa: E501 - lines of logs as they are written

import io
import tracemalloc
from collections.abc import Iterator

import pytest

from vramtop.estimator.crash.job_log import read_log
from vramtop.estimator.crash.records import CrashLog

GIB = 2**30


def message(tried: str = "2.00 GiB", gpu: int = 0) -> str:
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU {gpu} has a total capacity of 79.25 "
        "GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.25 GiB memory in use. Of the "
        "allocated memory 70.00 GiB is allocated by PyTorch, and 7.00 GiB is reserved by PyTorch but unallocated."
    )


def read(text: str | bytes) -> CrashLog:
    return read_log(io.BytesIO(text.encode() if isinstance(text, str) else text))


TRACEBACK = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 88, in <module>
    trainer.train()
  File "/env/lib/python3.11/site-packages/transformers/trainer.py", line 2500, in training_step
    self.accelerator.backward(loss)
  File "/env/lib/python3.11/site-packages/torch/_tensor.py", line 626, in backward
  File "/env/lib/python3.11/site-packages/torch/autograd/graph.py", line 824, in _engine_run_backward
"""


def test_a_traceback_says_where_in_the_step() -> None:
    log = read("  3%|3         | 12/400 [00:31<16:40,  2.58s/it]\r" + TRACEBACK + message() + "\n")
    (failure,) = log.failures
    assert (failure.kind, failure.phase, failure.steps) == ("gpu", "backward", 12)
    assert failure.place.endswith(" training_step")
    assert failure.memory.tried_bytes == 2 * GIB


@pytest.mark.parametrize(
    ("bar", "steps"),
    [
        (" 50%|#####     | 20/40 [00:09<00:09,  2.1it/s]", 20),
        ("Training:  50%|#####     | 20/40 [00:09<00:09]", 20),
        ("Epoch 1/3:  50%|#####     | 20/40 [00:09<00:09]", 20),
        ("Loading checkpoint shards:  50%|##   | 2/4 [00:03<00:03,  1.6s/it]", None),
        ("Map (num_proc=4):  10%|#    | 1000/9999 [00:03<00:27]", None),
        ("100%|##########| 4/4 [00:03<00:00,  1.2it/s]", None),
    ],
)
def test_only_the_bar_of_a_training_loop_counts_steps(bar: str, steps: int | None) -> None:
    assert read(f"{bar}\r{message()}\n").failures[0].steps == steps


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        (('torch/optim/adamw.py", line 1, in _init_group',), "optimizer step"),
        (('transformers/modeling_utils.py", line 1, in from_pretrained',), "loading"),
        (('torch/nn/modules/module.py", line 1, in _call_impl', 'modeling_llama.py", line 9, in forward'), "forward"),
        (
            ('transformers/generation/utils.py", line 3, in generate', 'modeling_llama.py", line 9, in forward'),
            "generation",
        ),
        (
            ('transformers/trainer.py", line 1, in evaluation_loop', 'trainer_pt_utils.py", line 9, in forward'),
            "evaluation",
        ),
        (('torch/nn/parallel/distributed.py", line 1, in __init__',), "loading"),
        (('/home/u/tool.py", line 1, in main',), None),
    ],
)
def test_phases(frames: tuple[str, ...], phase: str | None) -> None:
    lines = "".join(f'  File "/env/{frame}\n' for frame in frames)
    (failure,) = read(f"Traceback (most recent call last):\n{lines}{message()}\n").failures
    assert failure.phase == phase


@pytest.mark.parametrize(
    "prefix", ["[rank{}]: ", "[default{}]:", "{}: ", "[1,{}]<stderr>:", "[default{0}]:[rank{0}]: "]
)
def test_interleaved_ranks_keep_their_own_messages(prefix: str) -> None:
    """Two ranks fail at once, and their lines, wrapped at different places, are mixed."""
    words = {rank: message(f"{rank}.00 GiB", rank).split() for rank in (1, 2)}
    lines = []
    for at in range(0, 80, 9):
        for rank in (1, 2):
            if words[rank][at : at + 9]:
                lines.append(prefix.format(rank) + " ".join(words[rank][at : at + 9]))
    found = {failure.rank: failure.memory for failure in read("\n".join(lines)).failures}
    assert {rank: memory and (memory.gpu, memory.tried_bytes) for rank, memory in found.items()} == {
        1: (1, GIB),
        2: (2, 2 * GIB),
    }
    assert all(memory and memory.unallocated_bytes == 7 * GIB for memory in found.values())


def test_a_repeated_message_is_one_failure() -> None:
    log = read(f"[rank0]: {message()}\nwandb: {message()}\n[rank0]: {message()}\n[rank1]: {message()}\n")
    assert [failure.rank for failure in log.failures] == [0, 1]
    assert log.lines == 4


@pytest.mark.parametrize(
    "line",
    [
        "INFO saving to memory efficient format, exit code: 0",
        "loss 0.137 lr 1e-9",
        "He Killed It was a good film",
        "train_loss: 137, memory 12 GiB",
        '"OOMKilled": false,',
        "pinned buffers by cudaHostAlloc",
        "If reserved memory is >> allocated memory try setting max_split_size_mb",
    ],
)
def test_other_lines_are_no_failures(line: str) -> None:
    assert not read(line).failures


def test_the_first_gpu_failure_is_the_cause_of_killed_ranks() -> None:
    log = read(
        "    rank      : 1 (local_rank: 1)\n    exitcode  : -9 (pid: 12)\n"
        f"[rank0]: {message()}\n    rank      : 2 (local_rank: 2)\n    exitcode  : -9 (pid: 13)\n"
    )
    assert [(failure.kind, failure.rank) for failure in log.failures] == [("killed", 1), ("gpu", 0), ("killed", 2)]
    assert log.cause is log.failures[1]


@pytest.mark.parametrize("prefix", ["", "704.7s\t1458\t", "2024-06-17T13:18:29.371622Z "])
def test_torchruns_summary_names_the_rank_of_a_killed_process_once(prefix: str) -> None:
    lines = (
        "  rank      : 4 (local_rank: 4)",
        "  exitcode  : -9 (pid: 208585)",
        "  error_file: <N/A>",
        "  traceback : Signal 9 (SIGKILL) received by PID 208585",
    )
    found = read("\n".join(prefix + line for line in lines)).failures
    assert [(failure.kind, failure.rank) for failure in found] == [("killed", 4)]


def test_a_rank_within_the_line() -> None:
    assert read(f"# run 3: [rank6]: {message()}").failures[0].rank == 6
    assert read(f"as [rank2] said: {message()}").failures[0].rank is None


@pytest.mark.parametrize("prefix", ["704.7s\t1458\t", "2024-06-17T13:18:29.371622Z ERROR ", "  | "])
def test_tracebacks_behind_times_and_lines(prefix: str) -> None:
    lines = [prefix + line for line in (*TRACEBACK.splitlines(), message())]
    (failure,) = read("\n".join(lines)).failures
    assert failure.phase == "backward"


def test_a_sure_failure_is_the_cause_before_a_possible_one() -> None:
    log = read("exitcode: -9 (pid: 3)\nsrun: error: n1: task 0: Out Of Memory\n")
    assert log.cause is log.failures[1]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
def test_encodings(encoding: str) -> None:
    text = f"Größe 5\r\n{message()}\r\nEnde\r\n"
    log = read(text.encode(encoding))
    assert [failure.kind for failure in log.failures] == ["gpu"]
    assert log.failures[0].line == 2


def test_colours_and_progress_bars_do_not_hide_it() -> None:
    log = read(f"\x1b[31m 5%|#   | 4/90 [00:01<00:02]\r\x1b[0m\x1b]0;title\x07[rank3]: \x1b[1m{message()}\x1b[0m\n")
    assert [(failure.rank, failure.kind) for failure in log.failures] == [(3, "gpu")]


class _Endless(io.RawIOBase):
    """A file of many megabytes that never exists as a whole."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return next(self._pieces, b"")


@pytest.mark.slow
def test_a_very_long_log_and_line_take_little_memory() -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(80):
            yield b"x" * 2**18  # one line of 20 MiB
        yield message().encode() + b"\n"
        for rank in range(6_000):
            yield b"[rank%d]: Traceback (most recent call last):\n" % rank
        yield b"\nTried to allocate nothing. out of memory " * 1000

    tracemalloc.start()
    log = read_log(_Endless(pieces()))  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(failure.kind, failure.line) for failure in log.failures] == [("gpu", 1), ("not understood", 6003)]
    assert peak < 16 * 2**20


def test_a_message_that_spans_two_pieces_of_a_long_line_is_found() -> None:
    for before in range(65_000, 66_200, 97):
        assert len(read("y" * before + " " + message() + "z" * 9000).failures) == 1


@pytest.mark.parametrize("filler", ["y", "exit code ", "[rank1]: "])
def test_no_text_takes_long_to_search(filler: str) -> None:
    """Patterns whose time grew with the square of the length would take minutes here."""
    log = read(filler * (10**5 // len(filler)) + " out of memory\n" + message())
    assert [failure.kind for failure in log.failures] == ["gpu"]


def test_the_launch_line_of_a_log() -> None:
    log = read(f"+ torchrun --nproc-per-node 8 train.py --bf16\nstarting\n{message()}\n")
    assert log.launch_line == "torchrun --nproc-per-node 8 train.py --bf16"
