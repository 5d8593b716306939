"""A new check is one class in one module of the checks' folder."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vramtop.monitor.preflight import checks
from vramtop.monitor.preflight.checks import find_checks
from vramtop.monitor.preflight.context import CheckContext
from vramtop.monitor.preflight.run_checks import run_checks

NEW_CHECK = '''
"""A check of the weather."""

from vramtop.monitor.preflight.checks.cuda import DriverCheck
from vramtop.monitor.preflight.context import Check, CheckResult


class _Weather(Check):
    """Not complete: it is not collected."""


class WeatherCheck(_Weather):
    """The sun shines."""

    name = "Weather"

    def run(self, context):
        """Pass."""
        return self.passes(f"sunny for {context.job.label}")
'''
REPORT = [
    *("NVIDIA driver", "CUDA runtime", "Compute capability", "Visible devices"),
    *("VRAM lower bound", "VRAM verdict", "Host memory"),
    *("Model files", "Model access", "Hub token", "Environment keys"),
    *("Output folder", "Log folder", "Reporting targets", "Libraries"),
    *("NCCL interface", "NCCL InfiniBand", "Shared memory", "Rendezvous"),
]


def test_checks_are_in_the_order_of_the_report() -> None:
    assert [check.name for check in find_checks()] == REPORT


def test_a_new_check_is_found_in_its_module_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_context: Callable[..., CheckContext]
) -> None:
    (tmp_path / "weather.py").write_text(NEW_CHECK)
    monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    try:
        assert [check.name for check in find_checks()] == [*REPORT, "Weather"]
        result = run_checks(make_context(), [find_checks()[-1]()])[0]
        assert (result.name, result.status, result.found) == ("Weather", "pass", "sunny for check")
    finally:
        sys.modules.pop(f"{checks.__name__}.weather", None)
        vars(checks).pop("weather", None)
