"""The choice of GPUs and hosts against every other choice."""

import random
from itertools import permutations, product

import pytest

from vramtop.monitor.fleet.placing import best_first, choose_gpus, largest_block, left_after


def brute_block(available: list[int]) -> int:
    """Largest job that takes the same on each of some GPUs: every subset, its smallest member on each."""
    best = 0
    for mask in product((False, True), repeat=len(available)):
        chosen = [size for size, taken in zip(available, mask, strict=True) if taken]
        best = max(best, len(chosen) * min(chosen, default=0))
    return best


def brute_choices(available: list[int], needs: list[int]) -> list[list[int]]:
    """What each choice of GPUs leaves, for all choices that fit."""
    placings = permutations(range(len(available)), len(needs))
    left = (left_after(available, needs, placing) for placing in placings)
    return [sizes for sizes in left if min(sizes) >= 0]


@pytest.mark.parametrize("seed", range(60))
def test_no_choice_of_gpus_leaves_a_larger_block(seed: int) -> None:
    random_ = random.Random(seed)  # noqa: S311 - test data
    available = [random_.choice((0, 10, 12, 20, 40, 79, 80)) for _ in range(random_.randint(1, 6))]
    needs = [random_.choice((5, 8, 10, 20, 41))] * random_.randint(1, 3)
    assert largest_block(available) == brute_block(available)
    choices = brute_choices(available, needs)
    chosen = choose_gpus(available, needs)
    if not choices:
        assert chosen is None
    else:
        assert chosen is not None
        assert len(set(chosen)) == len(needs)
        left = left_after(available, needs, chosen)
        assert min(left) >= 0
        assert brute_block(left) == max(map(brute_block, choices))


def test_a_gpu_that_keeps_the_height_of_the_block_is_taken_before_the_fullest_that_fits() -> None:
    assert choose_gpus([12, 20], [8]) == (1,)  # 2 x 12 are left, not 1 x 20
    assert choose_gpus([30, 80, 80], [25]) == (0,)
    assert choose_gpus([80, 30], [20, 60]) == (1, 0)  # stages of a pipeline: the larger one takes the larger GPU
    assert choose_gpus([80, 30], [40, 60]) is None


@pytest.mark.parametrize("seed", range(60))
def test_no_other_hosts_leave_larger_blocks(seed: int) -> None:
    """Blocks of the whole fleet, largest first, after every choice of hosts."""
    random_ = random.Random(seed)  # noqa: S311 - test data
    before = [random_.choice((80, 160, 320, 640)) for _ in range(random_.randint(2, 6))]
    after = [random_.randrange(size) for size in before]
    count = random_.randint(1, len(before))

    def blocks(taken: tuple[int, ...]) -> list[int]:
        left = [after[at] if at in taken else before[at] for at in range(len(before))]
        return sorted(left, reverse=True)

    order = best_first(range(len(before)), before.__getitem__, after.__getitem__)
    assert blocks(tuple(order[:count])) == max(map(blocks, permutations(range(len(before)), count)))
