"""Checks of what NCCL needs so that several ranks can communicate: network, shared memory, and limits.

Sources: NCCL's documentation, Environment Variables (NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE, NCCL_IB_HCA) and
Troubleshooting (shared memory, pinned memory); torchrun's documentation (MASTER_ADDR, MASTER_PORT).
"""

import errno
import os
import resource
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from vramtop.estimator.common.sizes import GIB, MIB, format_gib

from ..context import CheckContext, CheckResult, fails, inconclusive, passes, skips, warns

_MIN_SHARED_BYTES = GIB
"""NVIDIA's recommendation for containers for NCCL (``--shm-size=1g``); Docker's own default is 64 MiB."""
_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_SINGLE_RANK = "not needed: one GPU"
_OTHER_MACHINE = "the job is for another machine than this one"


def _skip_reason(context: CheckContext) -> str | None:
    """Return why the checks of this module do not apply; None: they do."""
    if context.job.parallel.world_size == 1:
        return _SINGLE_RANK
    return _OTHER_MACHINE if context.machine.is_described else None


def check_network_interface(context: CheckContext, interfaces: Sequence[str] | None = None) -> CheckResult:
    """The network interface that NCCL is set to use exists.

    Fail if a name matches no interface.
    """
    reason = _skip_reason(context)
    if reason is not None:
        return skips(reason)
    here = interfaces
    if here is None:
        here = [name for _, name in socket.if_nameindex()]
    settings = [(name, context.environ[name]) for name in _INTERFACE_VARIABLES if context.environ.get(name, "").strip()]
    for name, value in settings:
        if not select_interfaces(value, here):
            found = f"{name}={value} names none of this machine's interfaces ({', '.join(here)})"
            return fails(found, f"set {name} to one of them, or unset it")
    if settings:
        words = "; ".join(f"{name}={value}: {', '.join(select_interfaces(value, here))}" for name, value in settings)
        return passes(words)
    words = f"NCCL_SOCKET_IFNAME is not set: NCCL chooses among {', '.join(here)}"
    return passes(f"{words}. Direct access between GPUs (P2P, NVLink) is not checked")


def check_infini_band(
    context: CheckContext, folder: Path = Path("/sys/class/infiniband"), locked_bytes: int | None = None
) -> CheckResult:
    """InfiniBand is used if there is an adapter, and may pin memory.

    Warn of a limit on pinned memory, and of an adapter that is switched off between machines.
    """
    reason = _skip_reason(context)
    if reason is not None:
        return skips(reason)
    adapters = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    wanted = context.environ.get("NCCL_IB_HCA", "")
    if not adapters:
        if wanted:
            return warns(f"NCCL_IB_HCA={wanted}, and there is no InfiniBand adapter", "unset NCCL_IB_HCA")
        return skips("no InfiniBand adapter here")
    names = ", ".join(adapters)
    if context.environ.get("NCCL_IB_DISABLE", "") == "1":
        if context.several_machines:
            return warns(f"{names} here, and NCCL_IB_DISABLE=1: machines communicate over sockets", "unset it")
        return passes(f"{names} here, not used (NCCL_IB_DISABLE=1)")
    active = [name for name in adapters if any("ACTIVE" in text for text in _states(folder / name))]
    if not active:
        return warns(f"{names} here, and none of their ports is active", "see ibstat")
    locked = locked_bytes
    if locked is None:
        locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if locked != resource.RLIM_INFINITY:
        found = f"{', '.join(active)} active, and only {format_gib(locked, digits=2)} GiB may be pinned (ulimit -l)"
        return warns(found, "ulimit -l unlimited; in a container --ulimit memlock=-1")
    return passes(f"{', '.join(active)} active, memory may be pinned without limit")


def check_shared_memory(context: CheckContext, folder: Path = Path("/dev/shm")) -> CheckResult:  # noqa: S108 - the folder that is examined
    """Shared memory, through which the ranks of a machine communicate.

    Fail if there is none; warn if there is little of it.
    """
    reason = _skip_reason(context)
    if reason is not None:
        return skips(reason)
    if context.environ.get("NCCL_SHM_DISABLE", "") == "1":
        return skips("NCCL_SHM_DISABLE=1: NCCL does not use it")
    advice = "make it larger; in a container --shm-size=1g, or --ipc=host"
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return fails(f"{folder} does not exist or cannot be written to", advice)
    disk = os.statvfs(folder)
    free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    found = f"{folder}: {format_gib(free, digits=2)} GiB free of {format_gib(total, digits=2)}"
    if free < MIB:
        return fails(f"{found}: it is full", "delete files left by ended programs, or make it larger")
    return warns(found, advice) if free < _MIN_SHARED_BYTES else passes(found)


def check_rendezvous(context: CheckContext) -> CheckResult:
    """The address of the rendezvous can be resolved, and its port is free.

    Fail if the address cannot be resolved, or if it is this machine's and the port is in use.
    """
    reason = _skip_reason(context)
    if reason is not None:
        return skips(reason)
    address, port = context.environ.get("MASTER_ADDR"), context.environ.get("MASTER_PORT")
    if not address:
        if context.several_machines:
            advice = "set MASTER_ADDR, or give --rdzv_endpoint (the launcher may have its own; it is not checked)"
            return inconclusive("several machines, and MASTER_ADDR is not set", advice)
        return skips("MASTER_ADDR is not set: the launcher chooses")
    try:
        found = socket.getaddrinfo(address, None, proto=socket.IPPROTO_TCP)
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no host name"
        return fails(f"MASTER_ADDR={address} cannot be resolved ({reason})", "set it to a host or an IP address")
    if port is not None and not (port.isdecimal() and int(port) < 2**16):
        return fails(f"MASTER_PORT={port} is not a port number", "set it to a free one, such as 29500")
    ip = str(found[0][4][0])
    words = f"MASTER_ADDR={address} is {ip}"
    if port is not None and _is_taken(ip, int(port)):
        return fails(f"{words}, and its port {port} is taken", "set MASTER_PORT to another one")
    return passes(words)


def select_interfaces(value: str, here: Sequence[str]) -> list[str]:
    """Return this machine's interfaces that NCCL would use: by prefix, ``=`` exact name, ``^`` all but these."""
    without = value.startswith("^")
    value = value.removeprefix("^")
    exact = value.startswith("=")
    names = [name.strip() for name in value.removeprefix("=").split(",") if name.strip()]

    def named(interface: str) -> bool:
        return interface in names if exact else any(interface.startswith(name) for name in names)

    return [interface for interface in here if named(interface) != without]


def _states(adapter: Path) -> Iterator[str]:
    """Yield the state of each port of an adapter, such as ``4: ACTIVE``."""
    for state in sorted(adapter.glob("ports/*/state")):
        try:
            yield state.read_text(encoding="ascii", errors="replace")
        except OSError:
            continue


def _is_taken(ip: str, port: int) -> bool:
    """Return True if another program listens at that port of this machine; False for another machine."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
