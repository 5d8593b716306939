"""Finds the settings file."""

import os
import sys
from collections.abc import Mapping

CONFIG_VARIABLE = "VRAMTOP_CONFIG"
"""Names the settings file; ``--config`` takes precedence and sets it, so that started processes have the same one."""
NO_FILE = os.devnull
"""Name that stands for no settings file."""


def config_file(environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of the settings file: the named one, else ``$XDG_CONFIG_HOME/vramtop/config.toml``.

    It is relative if no home is known.
    """
    if named := environ.get(CONFIG_VARIABLE):
        return os.path.abspath(os.path.expanduser(named))  # noqa: PTH100, PTH111 - pathlib need not be loaded here
    return f"{_folder(environ, 'XDG_CONFIG_HOME', '.config')}/config.toml"


def old_settings_file(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of the file in which vramtop kept its settings before; None: another file is named."""
    if environ.get(CONFIG_VARIABLE):
        return None
    return f"{_folder(environ, 'XDG_DATA_HOME', '.local/share')}/settings.json"


def _folder(environ: Mapping[str, str], variable: str, of_home: str) -> str:
    """Return vramtop's folder as platformdirs does, which is imported only where that is no XDG folder."""
    if sys.platform != "linux":
        from platformdirs import user_config_dir, user_data_dir

        return (user_config_dir if variable == "XDG_CONFIG_HOME" else user_data_dir)("vramtop")
    base = environ.get(variable, "").strip()
    return os.path.join(base or os.path.expanduser(f"~/{of_home}"), "vramtop")  # noqa: PTH111, PTH118 - as above
