"""Network, shared memory and limits for several ranks."""

import resource
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vramtop.estimator.common.sizes import MIB
from vramtop.estimator.job.job import Job, ModelSpec, Parallel
from vramtop.monitor.preflight.checks.nccl import (
    check_infini_band,
    check_network_interface,
    check_rendezvous,
    check_shared_memory,
    select_interfaces,
)
from vramtop.monitor.preflight.context import CheckContext
from vramtop.monitor.preflight.facts import Machine

MakeContext = Callable[..., CheckContext]
INTERFACES = ("lo", "eth0", "ib0", "ib1")


@pytest.fixture
def four_ranks(make_context: MakeContext) -> MakeContext:
    """The context of a job with four ranks."""
    job = Job(model=ModelSpec(id="gpt2"), parallel=Parallel(strategy="ddp", data_replicate=4))
    return lambda environ=None, **changes: make_context(job, environ=environ or {}, **changes)


def test_a_single_rank_and_another_machine_are_skipped(make_context: MakeContext, four_ranks: MakeContext) -> None:
    for check in (check_network_interface, check_infini_band, check_shared_memory, check_rendezvous):
        assert check(make_context()).status == "skipped"
        assert check(four_ranks(machine=Machine(devices=()))).status == "skipped"


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("eth0", ["eth0"]),
        ("eth", ["eth0"]),
        ("=ib", []),
        ("=ib0", ["ib0"]),
        ("ib0,ib1", ["ib0", "ib1"]),
        ("^lo", ["eth0", "ib0", "ib1"]),
        ("^=ib0,ib1", ["lo", "eth0"]),
        ("eno1", []),
    ],
)
def test_interfaces_are_chosen_like_nccl_chooses_them(value: str, chosen: list[str]) -> None:
    assert select_interfaces(value, INTERFACES) == chosen


def test_a_missing_interface_is_a_failure(four_ranks: MakeContext) -> None:
    check = partial(check_network_interface, interfaces=INTERFACES)
    found = check(four_ranks({"NCCL_SOCKET_IFNAME": "eno1"}))
    assert (found.status, "NCCL_SOCKET_IFNAME=eno1 names none" in found.found) == ("failure", True)
    assert check(four_ranks({"GLOO_SOCKET_IFNAME": "bond0"})).status == "failure"
    assert check(four_ranks({"NCCL_SOCKET_IFNAME": "ib"})).found == "NCCL_SOCKET_IFNAME=ib: ib0, ib1"
    assert "P2P" in check(four_ranks()).found
    assert check_network_interface(four_ranks({"NCCL_SOCKET_IFNAME": "lo"})).status == "pass"


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    """One adapter with an active port, one without."""
    for name, state in (("mlx5_0", "4: ACTIVE\n"), ("mlx5_1", "1: DOWN\n")):
        port = tmp_path / "infiniband" / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(state)
    return tmp_path / "infiniband"


def test_infiniband(four_ranks: MakeContext, adapters: Path, tmp_path: Path) -> None:
    limited = partial(check_infini_band, folder=adapters, locked_bytes=64 * 1024)
    unlimited = partial(check_infini_band, folder=adapters, locked_bytes=resource.RLIM_INFINITY)
    found = limited(four_ranks())
    assert (found.status, "ulimit -l" in found.found) == ("warning", True)
    assert unlimited(four_ranks()).found == "mlx5_0 active, memory may be pinned without limit"
    assert unlimited(four_ranks({"NCCL_IB_DISABLE": "1"})).status == "pass"
    assert unlimited(four_ranks({"NCCL_IB_DISABLE": "1"}, local_ranks=2)).status == "warning"
    (adapters / "mlx5_0" / "ports" / "1" / "state").write_text("1: DOWN\n")
    assert "none of their ports is active" in unlimited(four_ranks()).found
    none = partial(check_infini_band, folder=tmp_path / "none")
    assert none(four_ranks()).status == "skipped"
    assert none(four_ranks({"NCCL_IB_HCA": "mlx5"})).status == "warning"


@pytest.mark.parametrize(("free", "status"), [(0, "failure"), (64 * MIB, "warning"), (4096 * MIB, "pass")])
def test_shared_memory(
    four_ranks: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str
) -> None:
    disk = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_blocks=2**21)
    monkeypatch.setattr("os.statvfs", lambda path: disk)
    assert check_shared_memory(four_ranks(), tmp_path).status == status
    assert check_shared_memory(four_ranks({"NCCL_SHM_DISABLE": "1"}), tmp_path).status == "skipped"
    assert check_shared_memory(four_ranks(), tmp_path / "none").status == "failure"


def test_the_rendezvous_address_is_checked(four_ranks: MakeContext) -> None:
    check = check_rendezvous
    assert check(four_ranks()).status == "skipped"
    assert check(four_ranks(local_ranks=2)).unknown
    assert check(four_ranks({"MASTER_ADDR": "127.0.0.1"})).status == "pass"
    for port in ("many", "-1", "65536"):
        assert check(four_ranks({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})).status == "failure"
    lost = check(four_ranks({"MASTER_ADDR": "no-such-host.invalid"}))
    assert (lost.status, "cannot be resolved" in lost.found) == ("failure", True)
    assert check(four_ranks({"MASTER_ADDR": "x" * 300})).status == "failure"


def test_a_port_in_use_is_reported(four_ranks: MakeContext) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = str(server.getsockname()[1])
        found = check_rendezvous(four_ranks({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}))
    assert (found.status, f"port {port} is taken" in found.found) == ("failure", True)
    assert check_rendezvous(four_ranks({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})).status == "pass"


def test_a_port_of_another_machine_is_not_tried(four_ranks: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[Any] = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))]  # of no machine (RFC 5737)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: known)
    environ = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    assert check_rendezvous(four_ranks(environ)).found == "MASTER_ADDR=node1 is 192.0.2.7"
