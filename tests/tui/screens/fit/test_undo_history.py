from vramtop.estimator.job.job import Job, Training
from vramtop.tui.screens.fit.undo_history import UndoHistory


def job(micro_batch: int, length: int = 2048) -> Job:
    return Job(training=Training(micro_batch=micro_batch, sequence_length=length))


def test_consecutive_edits_of_one_field_are_one_step():
    past = UndoHistory(job(1))
    past.record(job(12), "training.micro_batch")
    past.record(job(128), "training.micro_batch")
    past.record(job(128, 512), "training.sequence_length")
    assert past.undo() == job(128)
    assert past.undo() == job(1)
    assert past.undo() is None


def test_a_suggestion_is_its_own_step():
    past = UndoHistory(job(8))
    past.record(job(4), None)
    past.record(job(2), None)
    assert past.undo() == job(4)
    assert past.can_undo
    assert past.undo() == job(8)
    assert not past.can_undo


def test_an_edit_without_a_change_is_no_step():
    past = UndoHistory(job(8))
    past.record(job(8), None)
    assert not past.can_undo
