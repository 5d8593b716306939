"""``accelerate estimate-memory`` on a local folder.

The command itself asks the hub about the model before anything else, so it cannot be run offline. That question alone
is answered here, at once; all else is accelerate's own. It therefore takes less time here than it takes its users.
"""

from types import SimpleNamespace
from typing import Any

from accelerate.commands import estimate
from accelerate.commands.accelerate_cli import main


def known(*_args: Any, **_options: Any) -> SimpleNamespace:
    """What the hub would say of a model of transformers."""
    return SimpleNamespace(config={}, library_name="transformers")


if __name__ == "__main__":
    import sys

    estimate.verify_on_hub = known
    sys.argv[1:1] = ["estimate-memory"]
    main()
