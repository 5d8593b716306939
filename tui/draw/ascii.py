"""ASCII characters in place of the signs, lines and blocks of the dashboard, for terminals that have no others."""

from functools import lru_cache

_LINES = {
    **dict.fromkeys("─┈╌", "-"),
    **dict.fromkeys("│┃║┆┊▏▎▍▌▐▕▊▋▉", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯╔╗╚╝┏┓┗┛", "+"),
}
_BLOCKS = {
    **dict.fromkeys("█▇▆", "#"),
    **dict.fromkeys("▅▄▃", ":"),
    **dict.fromkeys("▂▁▔▀", "."),
    "▓": "%",
    "▒": "=",
    "░": ".",
}
_ARROWS = {"▶": ">", "►": ">", "◀": "<", "→": ">", "←": "<", "↓": "v", "↑": "^", "↗": "/"}
_OTHER = dict(zip("┄━═°–—•✓✗▲▼■…×−·≥▸▾╱", "~== --*+x^v#.x-->+-/", strict=True))
_TABLE = str.maketrans(_LINES | _BLOCKS | _ARROWS | _OTHER)


@lru_cache(maxsize=4096)
def to_ascii(text: str) -> str:
    """Replace every non-ASCII character by ASCII characters of the same width."""
    if text.isascii():
        return text
    from rich.cells import cell_len  # what Textual has at hand, and most commands need not

    return "".join(char if char.isascii() else "?" * cell_len(char) for char in text.translate(_TABLE))
