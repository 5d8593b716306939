"""Fills in the flags that were not typed from the user's settings, where they take effect."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.paths import expand_user, is_file, is_folder
from vramtop.estimator.common.secrets import displayed
from vramtop.monitor.storage.settings.in_force import DEFAULT, DEFAULTS, FILE, SettingsInForce, settings_in_force
from vramtop.monitor.storage.settings.schema import Value
from vramtop.monitor.storage.settings.settings_file import CONFIG_VARIABLE, Problem, line_of, shown

from ..draw.text_output import printable


class _Row(NamedTuple):
    """An option that a setting fills in."""

    option: str
    setting: str
    to_option: Callable[[Any], object] = lambda value: value
    from_option: Callable[[Any], Value] = lambda value: value


_ROWS = (
    _Row("interval", "dashboard.interval"),
    _Row("mouse", "dashboard.mouse"),
    _Row("ascii", "dashboard.ascii", {"on": True, "off": False}.get, lambda on: "on" if on else "off"),
    _Row("read_only", "dashboard.read_only"),
    _Row("attach", "attach.automatic"),
    _Row("method", "estimates.method"),
    _Row("python", "estimates.python", lambda path: path or None),
    _Row("rehearse", "estimates.rehearse", {"never": False}.get, lambda on: "always" if on else "never"),
    _Row("history", "history.enabled"),
)


_PROMETHEUS_SECONDS = 5.0
"""Between readings of a Prometheus, unless ``--interval`` says otherwise."""
_QUIET = ("config", "completion", "stream")
"""Commands that say nothing of wrong settings: ``config`` shows them, and errors of ``stream`` are read elsewhere."""


def fill_in_settings(options: argparse.Namespace) -> None:
    """Read the settings, fill them into the options that were not typed, and keep them as ``options.settings``.

    What is wrong with them is one sentence on standard error each; a dashboard shows it as a notice instead.

    Raises:
        InputError: a flag refers to a setting that is not there.
    """
    _name_file(options)
    settings = settings_in_force()
    options.names_python = options.python is not None
    for row in _ROWS:
        typed = getattr(options, row.option, None)
        if typed is not None:
            flag = f"--{'' if typed is not False else 'no-'}{row.option.replace('_', '-')}"
            settings = settings._replace(
                values={**settings.values, row.setting: row.from_option(typed)},
                origins={**settings.origins, row.setting: flag},
            )
    settings = _without_missing_python(settings)
    _read_prometheus(options, settings)
    for row in _ROWS:
        if getattr(options, row.option, "absent") is None:
            setattr(options, row.option, row.to_option(settings.values[row.setting]))
    if options.prometheus and settings.origins["dashboard.interval"] != "--interval":
        options.interval = _PROMETHEUS_SECONDS
    options.settings = settings
    is_dashboard = not options.command and not options.once
    if not is_dashboard and options.command not in _QUIET:
        for problem in settings.problems:
            print(f"vramtop: {printable(displayed(problem.sentence))}", file=sys.stderr)


_MAX_NOTICES = 3
"""Notices cover the dashboard."""


def settings_notices(settings: SettingsInForce) -> list[str]:
    """Return what a dashboard says of wrong settings when it opens: a few sentences, and how many more there are."""
    sentences = [displayed(problem.sentence) for problem in settings.problems]
    more = len(sentences) - _MAX_NOTICES
    if more <= 0:
        return sentences
    return [*sentences[:_MAX_NOTICES], f"{more} more problems in the settings; vramtop config lists them."]


def _name_file(options: argparse.Namespace) -> None:
    """Take the settings file of ``--config``, here and in started processes.

    Raises:
        InputError: it is not there; ``vramtop config`` may make it.
    """
    if options.config is None:
        return
    path = expand_user(options.config)
    if options.config and options.command != "config" and not is_file(path):
        raise InputError(f"--config {options.config}: there is no such file")
    os.environ[CONFIG_VARIABLE] = str(path.absolute()) if options.config else os.devnull


def _without_missing_python(settings: SettingsInForce) -> SettingsInForce:
    """Return the settings without an interpreter that is not there; one that was typed is refused where it is used."""
    name = "estimates.python"
    path, origin = str(settings.values[name]), settings.origins[name]
    there = is_file(expand_user(path)) or is_folder(expand_user(path))
    if not path or there or origin.startswith("--"):
        return settings
    line = line_of(settings.file, name) if origin == FILE else None
    where = f"{settings.file}, line {line}" if line else settings.file if origin == FILE else origin
    problem = Problem(f"{where}: {name} = {shown(path)}: no such program; searching for one instead", name)
    return settings._replace(
        values={**settings.values, name: DEFAULTS[name]},
        origins={**settings.origins, name: DEFAULT},
        problems=(*settings.problems, problem),
    )


def _read_prometheus(options: argparse.Namespace, settings: SettingsInForce) -> None:
    """Fill in the Prometheus of the settings where ``--prometheus`` has no address.

    Its files go to no other Prometheus.
    """
    if options.prometheus is None:
        return
    url, token, ca = (settings.values[f"prometheus.{key}"] for key in ("url", "token_file", "ca_file"))
    if not options.prometheus and not url:
        raise InputError("--prometheus needs an address; give one, or set prometheus.url (vramtop config)")
    options.prometheus = options.prometheus or url
    if options.prometheus == url:
        options.prometheus_token_file = options.prometheus_token_file or token or None
        options.prometheus_ca = options.prometheus_ca or ca or None
