"""Two hosts with different drivers behind real sshds on loopback, with keys and configuration of their own."""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_host import program
from waiting import until

from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.fleet.remote import RemoteFleet
from vramtop.monitor.fleet.ssh_command import SSH_VARIABLE, SshCommand

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
TOOLS = ("ssh", "ssh-keygen", "unshare")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        SSHD is None or not all(map(shutil.which, TOOLS)), reason=f"needs sshd and {', '.join(TOOLS)} (openssh-server)"
    ),
]


class Sshd:
    """One sshd, which sees programs of its own; as root it runs where its folder for privilege separation exists."""

    def __init__(self, folder: Path, key: Path) -> None:
        folder.mkdir()
        self.folder, self.key = folder, key
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "host_key"], check=True)  # noqa: S607
        shutil.copy(f"{key}.pub", folder / "authorized_keys")
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nPasswordAuthentication no\n"
            f"SetEnv PATH={folder}/bin:/usr/bin:/bin XDG_CACHE_HOME={folder} PYTHONPATH={Path(__file__).parents[3]}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        command = f"exec {SSHD} -D -e -f {self.folder}/sshd_config"
        words = ["sh", "-c", command]
        if os.geteuid() == 0:
            words = ["unshare", "-m", "sh", "-c", f"mount -t tmpfs none /run && mkdir /run/sshd && {command}"]
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(words, stderr=log, stdout=log, stdin=subprocess.DEVNULL)
        log.close()
        until(lambda: self.listens() or self.process is None or self.process.poll() is not None)
        if not self.listens():
            pytest.skip(f"sshd cannot run here: {(self.folder / 'log').read_text()[-200:]}")

    def listens(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """End it and its sessions."""
        if self.process is None:
            return
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.process.terminate()
        self.process.wait()
        for pid in children:
            subprocess.run(["kill", pid], check=False, capture_output=True)  # noqa: S607 - a session of this sshd
        self.process = None


@pytest.fixture(params=[False, True], ids=["own connections", "shared connections"])
def sshds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[dict[str, Sshd]]:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)  # noqa: S607
    made = {name: Sshd(tmp_path / name, key) for name in ("a", "b", "bare")}
    program(tmp_path / "a" / "bin", 2, 24)
    program(tmp_path / "b" / "bin", 1, 80)
    config = tmp_path / "config"
    sockets = Path(tempfile.mkdtemp())  # the path of a socket has at most 108 characters
    config.write_text(
        "".join(f"Host {name}\n  Port {each.port}\n" for name, each in made.items())
        + f"Host *\n  HostName 127.0.0.1\n  User {getpass.getuser()}\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
        f"  StrictHostKeyChecking no\n  UserKnownHostsFile {tmp_path}/known\n"
        + (f"  ControlMaster auto\n  ControlPersist 5\n  ControlPath {sockets}/%n\n" if request.param else "")
    )
    monkeypatch.setenv(SSH_VARIABLE, f"ssh -F {config}")
    for each in made.values():
        each.start()
    yield made
    for each in made.values():
        each.stop()
    shutil.rmtree(sockets)


def test_hosts_with_different_drivers_are_merged_and_one_goes_and_comes_back(sshds: dict[str, Sshd]) -> None:
    source = RemoteFleet(("a", "b", "bare"), SshCommand(interval=0.2, attaches=False))
    try:
        until(lambda: [host.state for host in source.read().hosts] == ["live", "live", "unreachable"])
        first, second, bare = source.read().hosts
        assert [gpu.total_bytes for gpu in (*first.gpus, *second.gpus)] == [24 * GIB, 24 * GIB, 80 * GIB]
        assert "not installed there" in (bare.reason or "")
        time = first.time
        until(lambda: source.read().hosts[0].time != time)
        sshds["b"].stop()
        until(lambda: source.read().hosts[1].state == "unreachable")
        gone = source.read().hosts[1]
        assert gone.gpus == second.gpus
        assert gone.since
        assert source.read().hosts[0].is_live
        sshds["b"].start()
        until(lambda: source.read().hosts[1].is_live)
    finally:
        source.close()
    folder = str(sshds["a"].folder)
    until(lambda: not streams_of(folder))


def test_a_key_that_is_refused_asks_for_no_password(sshds: dict[str, Sshd]) -> None:
    (sshds["a"].folder / "authorized_keys").write_text("")
    source = RemoteFleet(("a",), SshCommand(interval=1.0))
    try:
        until(lambda: source.read().hosts[0].state == "unreachable")
        assert "asks for no password" in (source.read().hosts[0].reason or "")
    finally:
        source.close()


def streams_of(folder: str) -> list[str]:
    """The processes on a host that still stream: their working environment names its folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environ, command = path.read_text(), path.with_name("cmdline").read_text()
        except OSError:
            continue
        if f"XDG_CACHE_HOME={folder}\0" in environ and "stream" in command:
            found.append(command)
    return found
