"""``vramtop serve``: show the dashboard in a browser, to those who know its address."""

import argparse
import json
import os
import socket
import sys
from collections.abc import Sequence

from vramtop.estimator.common.errors import InputError
from vramtop.monitor.export.listen_address import ListenAddress


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Serve until interrupted; exit code 0.

    Raises:
        InputError: the address or the flags of the dashboard are wrong, nothing can listen there, or textual-serve is
            missing.
    """
    address = ListenAddress.parse(options.listen) if options.listen else ListenAddress("127.0.0.1", 0)
    flags = _dashboard_flags(options, launch or ())
    try:
        from ...serve.server import BrowserServer  # with aiohttp
    except ImportError:
        missing = "serve needs textual-serve, which is not installed: pip install 'vramtop-budget[serve]'"
        raise InputError(missing) from None
    server = BrowserServer(address.names(options.name), flags)
    if not address.is_loopback:
        print(
            f"vramtop: {address.host} is reachable from other machines, and the address with its token crosses the "
            "network unencrypted; ssh -L or a TLS proxy keeps it private",
            file=sys.stderr,
        )

    def show(host: str, port: int) -> None:
        name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host  # noqa: S104
        url = f"http://{name}:{port}/{server.token}/"
        if options.json:
            print(json.dumps({"schema": 1, "address": url}), flush=True)
            return
        print(url, flush=True)
        if sys.stderr.isatty():
            print(_hint(port, allows_actions=options.allow_actions), file=sys.stderr)

    server.run(address.host, address.port, show)
    return 0


def _hint(port: int, *, allows_actions: bool) -> str:
    tunnel = (
        f"; over ssh: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}" if "SSH_CONNECTION" in os.environ else ""
    )
    power = (
        "can end your processes and read your files"
        if allows_actions
        else ("can see everything you see, but change nothing")
    )
    return f"open it in a browser{tunnel}; anyone with this address {power}; Ctrl-C stops"


def _dashboard_flags(options: argparse.Namespace, words: Sequence[str]) -> list[str]:
    """Return the command line of each dashboard.

    Raises:
        InputError: the words are no flags of the dashboard.
    """
    from ..main import build_parser  # which has imported this module

    parser = build_parser()
    given, unknown = parser.parse_known_args(list(words))
    if unknown:
        parser.reject(unknown)
    if given.command or given.once or given.json or given.host:
        raise InputError("after --, serve takes flags of this machine's dashboard, such as --demo, --job or --user")
    flags = [] if options.allow_actions else ["--view-only"]
    flags += [] if options.history else ["--no-history"]
    flags += ["--show-secrets"] if options.show_secrets else []
    flags.append("--ascii" if options.ascii else "--no-ascii")
    if options.names_python:
        flags += ["--python", options.python]
    return [*flags, *words]
