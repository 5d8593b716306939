"""The site is built without a warning, as ``make docs`` does, and loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
_LOADING = {"script": "src", "img": "src", "source": "src", "iframe": "src", "object": "data", "embed": "src"}
"""Attributes that make a browser load something; ``link`` depends on what it is for."""
_LINKS_THAT_LOAD_NOTHING = {"canonical", "prev", "next", "edit"}


class Page(HTMLParser):
    """What a page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag in _LOADING and _LOADING[tag] in found:
            self.loads.append(found[_LOADING[tag]])
        if tag == "link" and found.get("rel") not in _LINKS_THAT_LOAD_NOTHING:
            self.loads.append(found["href"])


def test_links_in_a_repository_browser_lead_to_a_file() -> None:
    """Of the pages as they are written, and of those at the root, which are no part of the site."""
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(
            r"^ *```.*?^ *```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
        )
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            parts = urlsplit(link)
            if not parts.scheme and parts.path and not (page.parent / unquote(parts.path)).exists():
                broken.append((str(page.relative_to(ROOT)), link))
    assert not broken


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False)
    words = done.stdout + done.stderr
    assert done.returncode == 0, words
    assert not [line for line in words.splitlines() if line.strip() and not line.startswith("INFO")], words
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


@pytest.mark.slow
@pytest.mark.published
def test_pages_load_nothing_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    loaded = {(path.name, url) for path, page in pages.items() for url in page.loads if urlsplit(url).netloc}
    assert not loaded
    sheets = [
        path for path in site.rglob("*.css") if re.search(r"(url\(|@import )[\"']?(https?:)?//", path.read_text())
    ]
    assert not sheets
    assert not [path for path in pages if 'class="mermaid"' in path.read_text()]  # the theme would load a library
