"""The user's settings of vramtop itself: one table of all settings, and ``config.toml``, where they are kept.

Lives here: the schema (name, type, default, meaning, check, flag and environment variable of each), reading and
changing the file, and taking over the older ``settings.json``. Callers: the command line, the app and its screens.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .change import (
        change_settings as change_settings,
        save_setting as save_setting,
        take_over_old_file as take_over_old_file,
    )
    from .in_force import (
        DEFAULT as DEFAULT,
        FILE as FILE,
        SettingsInForce as SettingsInForce,
        read_settings_file as read_settings_file,
        settings_in_force as settings_in_force,
    )
    from .places import CONFIG_VARIABLE as CONFIG_VARIABLE
    from .schema import (
        ASCII as ASCII,
        COLOURS as COLOURS,
        COLUMNS as COLUMNS,
        HOST_LINE as HOST_LINE,
        INTERVAL as INTERVAL,
        KEYS as KEYS,
        QUIET_HOURS as QUIET_HOURS,
        SETTINGS as SETTINGS,
        SORT as SORT,
        TABLES as TABLES,
        THEME as THEME,
        VIEW as VIEW,
        find_setting as find_setting,
        mapping_of as mapping_of,
        nearest_name as nearest_name,
    )
    from .setting import Setting as Setting, Value as Value
    from .template import settings_template as settings_template
    from .toml_text import Problem as Problem, lines_of as lines_of, shown as shown
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "change": "change_settings save_setting take_over_old_file",
            "in_force": "DEFAULT FILE read_settings_file settings_in_force SettingsInForce",
            "places": "CONFIG_VARIABLE",
            "schema": (
                "ASCII COLOURS COLUMNS HOST_LINE INTERVAL KEYS QUIET_HOURS SETTINGS SORT TABLES THEME VIEW "
                "find_setting mapping_of nearest_name"
            ),
            "setting": "Setting Value",
            "template": "settings_template",
            "toml_text": "lines_of Problem shown",
        },
    )
