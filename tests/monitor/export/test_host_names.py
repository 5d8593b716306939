"""By which names a server of this machine may be asked."""

import socket

import pytest

from vramtop.monitor.export.listen_address import HostNames, ListenAddress


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:9", "127.8.8.8"]
)
def test_on_loopback_its_names_are_allowed_with_any_port(host: str) -> None:
    assert HostNames().allow(host)


@pytest.mark.parametrize(
    "host",
    [
        *(None, "", "evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.5"),
        *("localhost:80; script-src *", "localhost@evil.example", "127.0.0.1.evil.example", "[::1", "a b"),
        "[fe80::1%25eth0]",
    ],
)
def test_a_strangers_name_that_resolves_to_this_machine_is_refused(host: str | None) -> None:
    assert not HostNames().allow(host)


def test_elsewhere_this_machines_names_and_addresses_are_allowed() -> None:
    names = ListenAddress("gpubox.example", 80).names(("GPU.example.org",))
    for host in ("10.0.0.5:8000", "localhost", socket.gethostname(), "gpu.example.org:443", "gpubox.example"):
        assert names.allow(host)
    assert not names.allow("evil.example")
