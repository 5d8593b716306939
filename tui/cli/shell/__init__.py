"""Files that shells and ``man`` read: completions for bash, zsh and fish, and the manual page, all from the parsers.

Lives here: one module per format, and the words that only a running vramtop knows. ``make completion`` writes the files
that the wheel installs.
Callers: ``commands``, ``main``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .files import shell_text as shell_text
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "files": "shell_text",
        },
    )
