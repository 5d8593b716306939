"""The files that the wheel installs where shells and ``man`` look; ``make completion`` writes them from the parsers."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

FILES: Mapping[str, str] = {
    "bash": "bash/vramtop",
    "zsh": "zsh/_vramtop",
    "fish": "fish/vramtop.fish",
    "man": "man/vramtop.1",
}
"""Path of each below ``shell/`` in the checkout."""


def shell_text(kind: str) -> str:
    """Return the completion of a shell, or with ``man`` the manual page."""
    from ..main import build_parser
    from .bash import bash_text
    from .fish import fish_text
    from .man_page import man_page
    from .words import completable
    from .zsh import zsh_text

    parser = build_parser()
    if kind == "man":
        return man_page(parser)
    texts: Mapping[str, Callable[..., str]] = {"bash": bash_text, "zsh": zsh_text, "fish": fish_text}
    return texts[kind](completable(parser))


def write_files(folder: Path) -> None:
    """Write all of them below a folder."""
    for kind, name in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shell_text(kind))


if __name__ == "__main__":
    write_files(Path(sys.argv[1]))
