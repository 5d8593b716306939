"""Fixtures: a stand-in for ssh, and a source over it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from stand_in_ssh import StandInSsh
from waiting import until

from vramtop.monitor.fleet.fleet import Fleet
from vramtop.monitor.fleet.remote import RemoteFleet
from vramtop.monitor.fleet.ssh_command import SSH_VARIABLE, SshCommand


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInSsh:
    stand_in = StandInSsh(tmp_path)
    monkeypatch.setenv(SSH_VARIABLE, str(stand_in.program))
    return stand_in


class Hosts:
    """A source over some hosts, and the clock by which it decides what is old."""

    def __init__(self, *names: str) -> None:
        self.time = 100.0
        self.source = RemoteFleet(
            names, SshCommand(interval=1.0), clock=lambda: self.time, now=lambda: 5000 + self.time
        )

    def read_until(self, condition: Callable[[Fleet], object]) -> Fleet:
        """Return the first fleet for which the condition is true."""
        until(lambda: condition(self.source.read()))
        return self.source.read()


@pytest.fixture
def make_hosts(request: pytest.FixtureRequest) -> Callable[..., Hosts]:
    def make(*names: str) -> Hosts:
        hosts = Hosts(*names)
        request.addfinalizer(hosts.source.close)
        return hosts

    return make
