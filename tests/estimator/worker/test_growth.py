"""Memory that a program leaves behind in each step."""

from vramtop.estimator.worker.memory.growth import left_behind
from vramtop.estimator.worker.memory.history import AllocationHistory, StorageRecord

MIB = 1 << 20


def history_of(steps: list[list[str]]) -> tuple[AllocationHistory, list[int]]:
    """Return a history in which each step leaves tensors of these components on one line, and its marks."""
    history, marks = AllocationHistory(), [0]
    for components in steps:
        for component in components:
            number = len(history.records)
            record = StorageRecord(number, MIB, MIB, (MIB,), "uint8", "", 0, component, line="train.py:9")
            history.records.append(record)
            history.events.append(number + 1)
        marks.append(len(history.events))
    return history, marks


def test_a_line_that_leaves_something_in_each_step_is_told() -> None:
    assert left_behind(*history_of([["activations"]] * 3)) == [("train.py:9", MIB)]


def test_what_ddp_makes_anew_after_the_first_step_is_no_growth() -> None:
    assert left_behind(*history_of([["activations"], ["communication"], []])) == []
    assert left_behind(*history_of([["activations"], ["activations"], []])) == [("train.py:9", MIB)]
