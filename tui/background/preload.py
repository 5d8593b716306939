"""Imports modules on a thread of low priority before a key needs them."""

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from vramtop.estimator.common.process_limit import ProcessLimitError

from .latest_only_task import TaskThread

_PAUSE_SECONDS = 0.02
"""Pause between two modules, in which other threads run: an import holds the interpreter's lock."""
_NICENESS = 10


def preload_modules(names: Sequence[str]) -> None:
    """Import these modules and all that they import; one that cannot be imported is reported when it is needed."""

    def import_all() -> None:
        with suppress(OSError, AttributeError):  # Linux gives each thread a niceness of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        for name in names:
            with suppress(ImportError):
                import_module(name)
            time.sleep(_PAUSE_SECONDS)

    with suppress(ProcessLimitError):
        TaskThread("preload").submit(import_all)
