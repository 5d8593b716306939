import pytest

from vramtop.estimator.budget import RankPeak, RankPeaks

SMALL, LARGE = (RankPeak(device_bytes=size, low_bytes=size - 1, high_bytes=size + 1) for size in (10, 20))


def test_ranks_are_numbered_by_stage_first() -> None:
    ranks = RankPeaks((LARGE, SMALL), 2)
    assert list(ranks) == [LARGE, LARGE, SMALL, SMALL]
    assert (len(ranks), ranks[1], ranks[2], ranks[-1], ranks[1:3]) == (4, LARGE, SMALL, SMALL, (LARGE, SMALL))
    assert ranks.highest == LARGE
    with pytest.raises(IndexError):
        ranks[4]


def test_alike_ranks_are_counted() -> None:
    assert list(RankPeaks((LARGE, SMALL, SMALL, SMALL, LARGE), 1000).runs) == [
        (LARGE, 1000),
        (SMALL, 3000),
        (LARGE, 1000),
    ]
    assert len(RankPeaks((LARGE,), 10**9)) == 10**9
