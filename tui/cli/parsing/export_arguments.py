"""The arguments of ``vramtop export``."""

import argparse
from typing import TYPE_CHECKING

from .alert_arguments import add_alert_arguments
from .shared_flags import add_name_argument, positive_seconds

if TYPE_CHECKING:
    from .parser import Parser


def add_export_arguments(parser: "Parser") -> None:
    """Add where the metrics go, who may read them, and what is read."""
    parser.examples = """\
  vramtop export                              on 127.0.0.1:10440
  vramtop export --listen :10440 --tls-cert host.pem --tls-key host.key
  vramtop export --listen :10440 --auth-user prometheus --password-file pw
  vramtop export --textfile /var/lib/node_exporter/vramtop.prom
  vramtop export --print-rules > vramtop_rules.yml
"""
    parser.epilog = (
        "It runs until it is interrupted. What each metric means stands above it, in a line that begins with # HELP."
    )
    text = "Address to serve on: HOST:PORT, PORT, or :PORT for all addresses (default: 127.0.0.1:10440)."
    parser.add_argument("--listen", metavar="HOST:PORT", help=text)
    add_name_argument(parser)
    text = "Write the metrics to this file (.prom) at each reading, for node_exporter; without --listen only that."
    parser.add_argument("--textfile", metavar="FILE", help=text)
    text = "Send the metrics to this OTLP endpoint too (HTTP); needs vramtop-budget[otlp]. Without --listen only that."
    parser.add_argument("--otlp", metavar="URL", help=text)
    parser.add_argument("--tls-cert", metavar="FILE", help="Certificate (PEM): serve HTTPS.")
    parser.add_argument("--tls-key", metavar="FILE", help="Its private key (PEM).")
    text = "Certificate of the authority (PEM) that clients must have a certificate of."
    parser.add_argument("--client-ca", metavar="FILE", help=text)
    text = "Clients need this name and a password: from --password-file or VRAMTOP_EXPORT_PASSWORD."
    parser.add_argument("--auth-user", metavar="NAME", help=text)
    parser.add_argument("--password-file", metavar="FILE", help="File with the password in its first line.")
    text = "Job file of a pending job, whose verdict is exported (repeatable)."
    parser.add_argument("--job", action="append", default=argparse.SUPPRESS, metavar="FILE", help=text)
    text = "Attach to training processes automatically (default), or not: there are no budgets then."
    parser.add_argument("--attach", action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
    text = "Time between readings (default: 1)."
    parser.add_argument("--interval", type=positive_seconds, default=argparse.SUPPRESS, metavar="SECONDS", help=text)
    add_alert_arguments(parser, after_command=True)
    printing = parser.add_mutually_exclusive_group()
    for name, text in (("rules", "alerting rules for Prometheus"), ("dashboard", "Grafana dashboard")):
        printing.add_argument(
            f"--print-{name}", dest="print_file", action="store_const", const=name, help=f"Print the {text} and exit."
        )
