"""Concurrent checks: time limits, unknown results, exit codes, and secrets."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.common.cancellation import CancelToken, current_token
from vramtop.estimator.common.errors import CancelledError, CannotTellError
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job, ModelSpec, Run
from vramtop.monitor.preflight.check import Check, CheckContext, CheckResult
from vramtop.monitor.preflight.job_launch import JobInterpreter
from vramtop.monitor.preflight.machine import Machine
from vramtop.monitor.preflight.prepare import prepare
from vramtop.monitor.preflight.run_checks import exit_code, run_checks


def fixed_check(
    status: str = "pass", *, wait: threading.Event | None = None, before: Callable[[], object] = int, **row: Any
) -> Check:
    """A check that returns a given result after a given time."""

    def run(context: CheckContext) -> CheckResult:
        before()
        if wait is not None:
            wait.wait(60)
        return CheckResult(status=status, found="so it is")  # type: ignore[arg-type]

    return Check("says", run, **row)


def failing_check(error: Exception) -> Check:
    def run(context: CheckContext) -> CheckResult:
        raise error

    return Check("raises", run, decisive=True)


def test_results_are_in_the_order_of_the_checks_and_reported_as_they_finish(make_context) -> None:
    gate = threading.Event()
    told: list[str] = []

    def tell(outcome: CheckResult) -> None:
        told.append(outcome.status)
        gate.set()

    found = run_checks(make_context(), [fixed_check("warning", wait=gate), fixed_check("pass")], on_result=tell)
    assert [outcome.status for outcome in found] == ["warning", "pass"]
    assert told == ["pass", "warning"]


def test_a_hanging_check_is_reported_and_not_waited_for(make_context) -> None:
    never = threading.Event()
    hangs = fixed_check(wait=never, timeout_seconds=0.2)
    hung, well = run_checks(make_context(), [hangs, fixed_check()])
    assert (hung.status, hung.unknown, hung.found) == ("warning", True, "no answer within 0.2 seconds")
    assert well.status == "pass"
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "preflight says")
    (shorter,) = run_checks(make_context(), [fixed_check(wait=never)], timeout_seconds=0.1)
    assert shorter.found == "no answer within 0.1 seconds"
    never.set()


def test_an_unknown_result_is_a_warning_with_its_reason(make_context) -> None:
    found = run_checks(
        make_context(),
        [failing_check(CannotTellError("no such luck")), failing_check(PermissionError(13, "Denied", "/x"))],
    )
    assert [(outcome.status, outcome.unknown, outcome.found) for outcome in found] == [
        ("warning", True, "no such luck"),
        ("warning", True, "/x: Denied"),
    ]


def test_an_exception_in_one_check_does_not_stop_the_others(make_context, monkeypatch) -> None:
    seen = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda what: seen.set())
    broken, well = run_checks(make_context(), [failing_check(ZeroDivisionError()), fixed_check()])
    assert seen.wait(60)  # it is written to the terminal
    assert (broken.unknown, well.status) == (True, "pass")
    assert broken.found == "the check itself failed"


def outcome(status: str, *, unknown: bool = False, decisive: bool = False) -> CheckResult:
    return CheckResult(name="x", status=status, found="", unknown=unknown, decisive=decisive)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([outcome("pass"), outcome("warning"), outcome("skipped")], 0),
        ([outcome("pass"), outcome("failure"), outcome("warning", unknown=True, decisive=True)], 1),
        ([outcome("pass"), outcome("warning", unknown=True, decisive=True)], 3),
        ([outcome("warning", unknown=True), outcome("warning", decisive=True)], 0),
        ([], 0),
    ],
)
def test_exit_codes(outcomes: list[CheckResult], code: int) -> None:
    assert exit_code(outcomes) == code


def test_a_required_variable_is_secret_whatever_its_name(make_context) -> None:
    job = Job(model=ModelSpec(config={}), run=Run(required_environment=["MY_AUTH"]))
    (found,) = run_checks(
        make_context(job, environ={"MY_AUTH": "sesame-open"}), [failing_check(CannotTellError("sesame-open"))]
    )
    assert found.found == "(not shown)"


def test_secret_values_are_removed_from_messages_of_libraries(make_context) -> None:
    environ = {"MY_API_KEY": "sesame-open", "HF_TOKEN_PATH": "/home/ana/token", "PASSWORD": "yes"}
    context = replace(make_context(), environ=environ)
    leak = CannotTellError("GET http://x/?k=sesame-open failed; /home/ana/token was read, yes")
    (found,) = run_checks(context, [failing_check(leak)])
    assert found.found == "GET http://x/?k=(not shown) failed; /home/ana/token was read, yes"


def test_cancelling_returns_at_once_and_reaches_every_check(make_context) -> None:
    never, cancel = threading.Event(), CancelToken()
    scopes: list[CancelToken] = []

    def end() -> None:
        scopes.append(current_token())
        cancel.cancel()

    with cancel.scope(), pytest.raises(CancelledError):
        run_checks(make_context(), [fixed_check(wait=never, before=end)])
    assert scopes == [cancel]
    never.set()


def test_a_hanging_worker_is_killed_on_cancellation(tmp_path: Path) -> None:
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o755)
    python = JobInterpreter(path=sleeper, origin="--python")
    context = prepare(Job(model=ModelSpec(id="gpt2")), Machine(devices=()), python, environ={}, folder=tmp_path)
    cancel = CancelToken()
    threading.Timer(0.3, cancel.cancel).start()
    with cancel.scope(), pytest.raises(CancelledError):
        context.torch_build()
