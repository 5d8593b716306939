"""All key bindings by id: the one place that says which key does what by default.

Ids are part of the settings file: they stay. ``GROUP.ACTION``: a group is a screen, a dialog, or what several share.
"""

from .dashboard_rows import DASHBOARD_KEYS
from .job_rows import JOB_KEYS
from .key import Key
from .shared_rows import SHARED_KEYS

KEYS: dict[str, Key] = {**SHARED_KEYS, **DASHBOARD_KEYS, **JOB_KEYS}
