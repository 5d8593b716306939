"""The keys: what each is called, which one is in force, and the check of those that the user chose.

Lives here: the table of all key bindings by id, names of keys, bindings made from the table.
Callers: screens, widgets and apps; the settings; the reference of keys.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .app_keys import APP_KEYS as APP_KEYS, FLEET_APP_KEYS as FLEET_APP_KEYS, TERMINAL_KEYS as TERMINAL_KEYS
    from .check_keys import KeyPlace as KeyPlace, UsedKey as UsedKey, split_keys as split_keys
    from .in_force import bind as bind, keys_in_force as keys_in_force, shown_key as shown_key, use_keys as use_keys
    from .key import FixedKey as FixedKey
    from .key_names import character_of as character_of, key_name as key_name
    from .shared_rows import (
        ALT_DIGIT_CHARACTERS as ALT_DIGIT_CHARACTERS,
        CHOICE_KEYS as CHOICE_KEYS,
        FIELD_KEYS as FIELD_KEYS,
        FIXED_KEYS as FIXED_KEYS,
    )
    from .table import KEYS as KEYS
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "app_keys": "APP_KEYS FLEET_APP_KEYS TERMINAL_KEYS",
            "check_keys": "KeyPlace UsedKey split_keys",
            "in_force": "bind keys_in_force shown_key use_keys",
            "key": "FixedKey",
            "key_names": "character_of key_name",
            "shared_rows": "ALT_DIGIT_CHARACTERS CHOICE_KEYS FIELD_KEYS FIXED_KEYS",
            "table": "KEYS",
        },
    )
