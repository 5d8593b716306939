import pytest
from hypothesis import given, strategies as st

from vramtop.monitor.snapshot.gpu_list import gpu_list


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1], "0, 1"),
        (range(64), "0-63"),
        ([range(64)], "0-63"),
        ([range(8), range(8, 1_000_000)], "0-999999"),
        (["0", "1", "2", "5"], "0-2, 5"),
        ([0, 1, 2, 5, 7, 8, 9], "0-2, 5, 7-9"),
        ([3, 2, 1], "3, 2, 1"),
        (["0:3", 1, 2, 3, "4:1 (MIG 1g.10gb)"], "0:3, 1-3, 4:1 (MIG 1g.10gb)"),
    ],
)
def test_consecutive_indices_are_shortened(labels: list[int | str | range], words: str) -> None:
    assert gpu_list(labels) == words


def test_of_many_parts_the_first_are_named() -> None:
    assert gpu_list([0, 2, 4, 6, 8], most=4) == "0, 2, 4, 6 …"
    assert gpu_list(range(20), most=4) == "0-19"


@given(st.lists(st.integers(0, 99), unique=True))
def test_no_index_is_lost(indices: list[int]) -> None:
    named: list[int] = []
    for part in filter(None, gpu_list(indices).split(", ")):
        first, _, last = part.partition("-")
        named += range(int(first), int(last or first) + 1)
    assert named == indices
