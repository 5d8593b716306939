"""A span of time for people."""


def span(seconds: float) -> str:
    """By its two largest units: ``41 s``, ``14 min``, ``2 h 05``, ``3 d 4 h``."""
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if minutes < 1:
        return f"{int(seconds)} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60:02}" if hours < 24 else f"{hours // 24} d {hours % 24} h"
