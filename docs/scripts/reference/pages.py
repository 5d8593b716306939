"""The pages that are written from the code: those that are written as a whole, and the parts of pages of prose."""

from collections.abc import Callable, Mapping
from pathlib import Path

from .commands import commands_page
from .hardware import cards_page
from .job_file import job_file_page
from .json_pages import json_page, schema_files
from .keys import keys_page
from .markdown import part_between
from .metrics import metrics_list
from .preflight import preflight_page
from .settings import settings_page
from .software import frameworks_page, models_page, optimizer_names

FOLDER = Path(__file__).parents[2] / "reference"
WHOLE: Mapping[str, Callable[[], str]] = {
    "cards.md": cards_page,
    "commands.md": commands_page,
    "frameworks.md": frameworks_page,
    "job-file.md": job_file_page,
    "json.md": json_page,
    "keys.md": keys_page,
    "models.md": models_page,
    "preflight.md": preflight_page,
    "settings.md": settings_page,
}
"""Pages by their names below docs/reference/."""
PARTS: Mapping[tuple[str, str], Callable[[], str]] = {
    ("metrics.md", "metrics"): metrics_list,
    ("optimizers.md", "names"): optimizer_names,
}
"""Parts of pages of prose, by page and name of the part."""


def written_pages() -> dict[Path, str]:
    """Return every page that the code has a part in, as it should be."""
    found = {FOLDER / name: make() for name, make in WHOLE.items()}
    found |= {FOLDER / "schemas" / name: text for name, text in schema_files().items()}
    for (name, part), make in PARTS.items():
        path = FOLDER / name
        found[path] = part_between(found.get(path) or path.read_text(encoding="utf-8"), part, make())
    return found
