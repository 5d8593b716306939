from types import SimpleNamespace

import pytest
from builders import make_budget

from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job
from vramtop.monitor.board.board import PendingRow
from vramtop.monitor.board.capacity import DeviceCapacity
from vramtop.monitor.board.fit import check_fit
from vramtop.tui.app.user_signals import UserSignals, desktop_sequence
from vramtop.tui.screens.dashboard.pending_list import pending_line

JOB = Job(name="sft; rm")


def row(fits: bool, turned_at: float | None) -> PendingRow:
    room = DeviceCapacity(index=3, uuid="GPU-3", name="card", total_bytes=80 * GIB, free_bytes=70 * GIB)
    budget = make_budget(JOB)
    return PendingRow(job=JOB, budget=budget, fit=check_fit(budget, [room]), fits=fits, fits_changed_at=turned_at)


def test_each_change_of_fit_is_told_once() -> None:
    told: list[str] = []
    app = SimpleNamespace(notify=lambda sentence, **_: told.append(sentence), bell=lambda: told.append("bell"))
    options = SimpleNamespace(clock=lambda: 0.0, signal_alert="bell")
    signals = UserSignals(app, options)  # type: ignore[arg-type]
    for rows in ([row(True, None)], [row(False, 7.0)], [row(False, 7.0)], [row(True, 9.0)]):
        signals.show_pending(rows)
    assert told == ["sft; rm no longer fits", "bell", "sft; rm fits now", "bell"]


@pytest.mark.parametrize(
    ("environ", "sequence"),
    [
        ({"TERM": "xterm-256color"}, "\x1b]9;a, b c\x07"),
        ({"TERM": "rxvt-unicode"}, "\x1b]777;notify;vramtop;a, b c\x07"),
        ({"TERM": "xterm", "VTE_VERSION": "7600"}, "\x1b]777;notify;vramtop;a, b c\x07"),
        ({"TERM": "tmux-256color", "TMUX": "/tmp/x"}, "\x1bPtmux;\x1b\x1b]9;a, b c\x07\x1b\\"),  # noqa: S108
        ({"TERM": "screen", "STY": "7.pts-0.box"}, "\x1bP\x1b]9;a, b c\x07\x1b\\"),
    ],
)
def test_desktop_notifications_by_terminal(environ: dict[str, str], sequence: str) -> None:
    assert desktop_sequence("a; b\x07c", environ) == sequence


def test_a_program_that_is_not_rehearsed_has_the_keys_that_ask_to_run_it() -> None:
    row = PendingRow(job=JOB, problem="not rehearsed: vramtop rehearse job.toml runs the program without a GPU")
    assert pending_line(row, 90, now=0.0).plain.rstrip().endswith("not rehearsed: press f, then Ctrl+R to run it")
    assert "vramtop rehearse job.toml" in pending_line(row, 90, now=0.0, asks=False).plain


def test_a_job_whose_fit_changed_recently_is_highlighted() -> None:
    assert pending_line(row(True, 100.0), 60, now=110.0).plain.startswith(" NOW  sft; rm  ✓ FITS")
    assert pending_line(row(False, 100.0), 60, now=110.0).plain.startswith(" NOW  sft; rm")
    assert pending_line(row(True, 100.0), 60, now=170.0).plain.startswith("pending sft; rm")
    assert pending_line(row(True, None), 60, now=170.0).plain.startswith("pending sft; rm")
