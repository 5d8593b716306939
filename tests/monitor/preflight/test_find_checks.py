"""The checks are a table, in the order of the report."""

from vramtop.monitor.preflight.checks import CHECKS

REPORT = [
    *("NVIDIA driver", "CUDA runtime", "Compute capability", "Visible devices"),
    *("VRAM verdict", "Host memory"),
    *("Model files", "Model access", "Environment keys"),
    *("Output folder", "Temporary folder", "Libraries", "Shared memory"),
]


def test_checks_are_in_the_order_of_the_report() -> None:
    assert [check.name for check in CHECKS] == REPORT, "name a new check in REPORT, at its place"
    assert all(check.run.__doc__ for check in CHECKS)  # the reference has it
