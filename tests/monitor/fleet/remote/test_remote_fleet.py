"""Hosts over a stand-in for ssh: merged, gone, back again, silent, and ended."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from builders import make_host, make_rank
from waiting import until

from vramtop.estimator.common.limits import Limit
from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.fleet.remote import MAX_CONNECTING, RemoteFleet
from vramtop.monitor.fleet.ssh_command import SshCommand
from vramtop.monitor.fleet.stream_line import stream_line


def states(fleet):
    return [host.state for host in fleet.hosts]


def test_hosts_are_merged_under_the_names_that_the_user_gave(ssh, make_hosts):
    facts = {"master": "node01:29500", "world_size": 2}
    ssh.sends(
        "ann@a", b"Welcome to node01\n", stream_line(make_host("node01", make_rank(7, facts={**facts, "rank": 0})))
    )
    ssh.sends("b", stream_line(make_host("node02", make_rank(8, 30, facts={**facts, "rank": 1}))))
    fleet = make_hosts("ann@a", "b").read_until(lambda fleet: states(fleet) == ["live", "live"])
    assert [host.host for host in fleet.hosts] == ["ann@a", "b"]
    (process,) = fleet.hosts[1].gpus[0].processes
    assert (process.facts.rank, process.facts.world_size) == (1, 2)
    assert fleet.totals.gpus.free_bytes == (69 + 49) * GIB


def test_a_host_that_is_gone_says_so_with_its_age_and_comes_back(ssh, make_hosts):
    line = stream_line(make_host("a", make_rank(7)))
    ssh.sends("a", line)
    ssh.does("b", f"cat {ssh.folder}/a.out; exit 255")
    ssh.does("c", "echo 'ssh: connect to host c port 22: Connection refused' >&2; exit 255")
    hosts = make_hosts("a", "b", "c")
    fleet = hosts.read_until(lambda fleet: states(fleet) == ["live", "unreachable", "unreachable"])
    assert len(fleet.hosts[1].gpus) == 1
    assert not fleet.hosts[2].gpus
    assert fleet.hosts[2].reason == "ssh: connect to host c port 22: Connection refused"
    assert fleet.totals.gpus.gpus == 1
    assert fleet.age_seconds(fleet.hosts[2]) is None
    ssh.sends("b", line)
    hosts.time += 60
    fleet = hosts.read_until(lambda fleet: fleet.hosts[1].is_live)
    assert fleet.hosts[1].reason is None


def test_only_a_host_that_is_not_heard_is_asked_less_and_less_often(ssh, monkeypatch):
    monkeypatch.setattr("vramtop.monitor.fleet.remote.BACKOFF_SECONDS", (0.0, 0.0, 600.0))
    ssh.does("c", f"echo >>{ssh.folder}/c.tries; exit 255")
    ssh.sends("b", stream_line(make_host("b")))
    ssh.does("b", f"echo >>{ssh.folder}/b.tries; cat {ssh.folder}/b.out; exit 255")
    tries = {host: ssh.folder / f"{host}.tries" for host in "bc"}
    with closing(RemoteFleet(("b", "c"), SshCommand(interval=1.0))) as fleet:
        fleet.read()
        until(lambda: [path.exists() and len(path.read_text()) > 2 for path in tries.values()] == [True, True])
        until(lambda: len(tries["b"].read_text()) > 6)
        assert len(tries["c"].read_text()) == 3


def test_the_others_can_be_read_while_a_process_is_waited_for(ssh, make_hosts):
    ssh.does("a", "exec >&-; trap '' TERM; sleep 3; exit 3")  # it closes its output, and goes on
    ssh.sends("b", stream_line(make_host("b")))
    fleet = make_hosts("a", "b").read_until(lambda fleet: states(fleet) == ["connecting", "live"])
    assert fleet.hosts[1].reason is None


def test_hosts_that_never_send_a_reading_keep_no_other_waiting(ssh, make_hosts, monkeypatch):
    monkeypatch.setattr("vramtop.estimator.common.limits.STREAM_START", Limit(what="its first reading", seconds=0.5))
    hanging = [f"hangs{number}" for number in range(MAX_CONNECTING)]
    for host in hanging:
        ssh.does(host, "exec cat")
    ssh.sends("z", stream_line(make_host("z")))
    fleet = make_hosts(*hanging, "z").read_until(lambda fleet: fleet.hosts[-1].is_live)
    assert states(fleet) == ["silent"] * MAX_CONNECTING + ["live"]
    assert fleet.hosts[0].reason == "its first reading took more than 0.5 s"


def test_a_host_without_readings_is_silent_and_keeps_its_age(ssh, make_hosts):
    ssh.sends("a", stream_line(make_host("a")))
    hosts = make_hosts("a")
    hosts.read_until(lambda fleet: states(fleet) == ["live"])
    hosts.time += 4
    assert states(hosts.source.read()) == ["live"]
    hosts.time += 4
    fleet = hosts.source.read()
    assert states(fleet) == ["silent"]
    assert fleet.age_seconds(fleet.hosts[0]) == 8


def test_what_cannot_be_understood_is_refused(ssh, make_hosts):
    new = {**json.loads(stream_line(make_host("a"))), "schema": 9}
    ssh.sends("a", json.dumps(new).encode() + b"\n")
    ssh.does("b", "yes 'not a reading'")
    fleet = make_hosts("a", "b").read_until(lambda fleet: states(fleet) == ["unreachable"] * 2)
    assert "speaks schema 9" in fleet.hosts[0].reason
    assert "not from vramtop stream" in fleet.hosts[1].reason


@pytest.mark.parametrize("figure", [-1, 10**30, 10**400])
def test_figures_that_no_machine_has_are_refused(ssh, make_hosts, figure):
    line = stream_line(make_host("a", make_rank(7))).replace(b'"used_bytes":10737418240', b'"used_bytes":%d' % figure)
    ssh.sends("a", line)
    fleet = make_hosts("a").read_until(lambda fleet: states(fleet) == ["unreachable"])
    assert fleet.hosts[0].reason.startswith("sent ")


def test_texts_of_a_host_cannot_write_to_the_terminal(ssh, make_hosts):
    ssh.sends("a", stream_line(make_host("a", make_rank(1, command="x\x1b]0;title\x07\ny", user="\u202eann"))))
    fleet = make_hosts("a").read_until(lambda fleet: states(fleet) == ["live"])
    process = fleet.hosts[0].gpus[0].processes[0]
    assert process.command == "x y"
    assert process.user.isprintable()


@pytest.mark.slow
def test_closing_ends_the_command_on_every_host(ssh, make_hosts):
    ssh.sends("a", stream_line(make_host("a")))
    ssh.does("b", f"echo $$ >{ssh.folder}/b.pid; trap '' HUP; exec sleep 600")
    hosts = make_hosts("a", "b")
    hosts.read_until(lambda fleet: fleet.hosts[0].is_live)
    until((ssh.folder / "b.pid").exists)
    until((ssh.folder / "b.pid").read_text)
    pid = int((ssh.folder / "b.pid").read_text())
    hosts.source.close()
    until((ssh.folder / "a.end").exists)
    assert not Path(f"/proc/{pid}").exists()


def test_a_missing_ssh_is_one_sentence(monkeypatch, make_hosts):
    monkeypatch.setenv("VRAMTOP_SSH", "/nowhere/ssh")
    hosts = make_hosts("a")

    def failure():
        try:
            hosts.source.read()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
            return str(error)

    until(failure)
    assert "there is no /nowhere/ssh" in failure()
