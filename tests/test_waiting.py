import pytest
from waiting import until


def test_a_condition_that_becomes_true_is_waited_for() -> None:
    answers = iter((False, False, True))
    until(lambda: next(answers))
    assert next(answers, None) is None


def test_a_condition_that_stays_false_fails_with_its_source() -> None:
    finished = False
    with pytest.raises(AssertionError, match=r"still false after 0\.01 s: .*finished"):
        until(lambda: finished, seconds=0.01)
