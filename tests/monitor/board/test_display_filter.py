"""What is displayed, and what is said to be hidden."""

import pytest
from builders import make_gpu, make_mig_gpu, make_process, make_run, make_snapshot, make_watchlist

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.board.display_filter import DisplayFilter, parse_devices

GIB = 2**30


def boards(**settings):
    """Make a watchlist with a filter, which knows one job: of the processes 1 and 2."""
    job = Job(name="sft", model=ModelSpec(id="meta-llama/Llama-3.1-8B"))
    settings.setdefault("text", "--user ana")
    return make_watchlist(make_run(job, 1, 2), device=30.0, display_filter=DisplayFilter(**settings))


def displayed(board):
    return {row.process.pid for row in board.processes if board.displays(row)}


def test_other_users_are_hidden_and_counted_and_gpus_keep_their_totals():
    mine, theirs, unknown = make_process(7, 3), make_process(8, 20, user="bo"), make_process(9, None, user=None)
    gpu = make_gpu(0, [mine, theirs, unknown])
    board = boards(users=frozenset({"ana"})).update(make_snapshot([gpu]))
    assert displayed(board) == {7}
    assert (board.hidden.by, board.hidden.processes, board.hidden.used_bytes) == ("--user ana", 2, 20 * GIB)
    assert board.displayed_gpus[0].reading == gpu
    assert len(board.gpus[0].rows) == 3


def test_a_run_is_displayed_whole_if_any_of_its_ranks_is():
    gpus = [make_gpu(0, [make_process(1, 30)]), make_gpu(1, [make_process(2, 75), make_process(7, 2)]), make_gpu(2)]
    watchlist = boards(devices=parse_devices("0"))
    board = watchlist.update(make_snapshot(gpus))
    assert displayed(board) == {1, 2}
    assert [gpu.reading.index for gpu in board.displayed_gpus] == [0]
    assert board.hidden.labels == ("1", "2")


def test_devices_are_named_by_index_range_mig_device_and_uuid():
    inside = make_process(7, 1, gpu_instance=3, compute_instance=0)
    gpus = [make_mig_gpu(0, [inside]), make_gpu(1), make_gpu(2), make_gpu(3)]

    def labels(text):
        return [
            each.reading.label
            for each in boards(devices=parse_devices(text)).update(make_snapshot(gpus)).displayed_gpus
        ]

    everything = ["0", "0:3:0", "0:3:1", "0:9", "1", "2", "3"]
    assert labels("0-3") == everything
    assert labels("0") == everything[:4]
    assert labels("0:9, 2-3") == ["0", "0:9", "2", "3"]
    assert labels("0:3") == ["0", "0:3:0", "0:3:1"]
    assert labels("gpu-00000001,MIG-0-9-") == ["0", "0:9", "1"]
    board = boards(devices=parse_devices("1,7")).update(make_snapshot(gpus))
    assert board.hidden.missing == ("7",)


@pytest.mark.parametrize("text", ["", "x", "3-1", "0,,1", "-1", "0:", "GPU-", "1.5", "9" * 40])
def test_what_names_no_gpu_is_one_sentence(text):
    with pytest.raises(InputError, match="is not a GPU: give indices, ranges, MIG devices or uuids"):
        parse_devices(text)
