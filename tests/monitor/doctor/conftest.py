"""Fixtures of the doctor's tests."""

from pathlib import Path

import pytest

from vramtop.monitor.doctor.driver_facts import DriverFacts
from vramtop.monitor.doctor.report import DoctorReport, find_issues
from vramtop.monitor.doctor.system import collect_data_folder_facts, collect_permission_facts, collect_system_facts


@pytest.fixture
def make_page():
    """Return a function that makes the doctor report of this machine with this driver."""

    def make(driver: DriverFacts, **changes) -> DoctorReport:
        facts = {
            "system": collect_system_facts({}),
            "driver": driver,
            "access": collect_permission_facts(),
            "files": collect_data_folder_facts(Path("/nowhere/vramtop")),
            "pythons": (),
        }
        return DoctorReport(**(facts | changes))

    return make


@pytest.fixture
def issue_sentences():
    """Return a function that lists the sentences of a report's issues, optionally of one severity."""

    def sentences(page: DoctorReport, severity: str | None = None) -> str:
        return " | ".join(each.sentence for each in find_issues(page) if severity in (None, each.severity))

    return sentences
