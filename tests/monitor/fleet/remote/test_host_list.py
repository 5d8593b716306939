"""Lists of hosts: what ssh and Slurm call them, and what is refused."""

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.monitor.fleet.ssh_command import MAX_HOSTS, parse_hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node01", ["node01"]),
        ("ann@node01,b.example.com", ["ann@node01", "b.example.com"]),
        ("node[01-03,20]", ["node01", "node02", "node03", "node20"]),
        ("ann@n[8-10]", ["ann@n8", "ann@n9", "ann@n10"]),
        ("r[1-2]n[1-2],login", ["r1n1", "r1n2", "r2n1", "r2n2", "login"]),
        ("node[098-101]-ib", ["node098-ib", "node099-ib", "node100-ib", "node101-ib"]),
        ("a,a", ["a"]),
        ("fe80::1%eth0", ["fe80::1%eth0"]),
    ],
)
def test_lists_are_expanded(text: str, hosts: list[str]) -> None:
    assert list(parse_hosts(text)) == hosts


@pytest.mark.parametrize(
    "text",
    [
        *("", "-oProxyCommand=id", "ann@-oProxyCommand=id", "a b", "a;id", "$(id)", "a,,b", "a\nb", "node[1-", "node]"),
        *("node[a-b]", "node[3-1]", "node[]", "-[1-2]", "node[0-999999999]", "a'b", "a/b", "knoten\u00fc"),
    ],
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_hosts(text)


def test_many_hosts_are_for_prometheus() -> None:
    assert len(parse_hosts(f"n[1-{MAX_HOSTS}]")) == MAX_HOSTS
    with pytest.raises(InputError, match="--prometheus"):
        parse_hosts("n[1-200],m[1-200]")
