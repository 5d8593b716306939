"""A few hosts without Prometheus: ``vramtop stream`` on each of them over the system's ssh.

Lives here: lists of hosts, the command line of ssh, the connection to one host, and the source that merges them.
Callers: the dashboard and ``--once`` over hosts.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .host_list import parse_hosts as parse_hosts, read_hosts_file as read_hosts_file
    from .remote_fleet import RemoteFleet as RemoteFleet
    from .ssh_command import SshCommand as SshCommand
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "host_list": "parse_hosts read_hosts_file",
            "remote_fleet": "RemoteFleet",
            "ssh_command": "SshCommand",
        },
    )
