"""Prints the changelog's section of a release, once its tag is the version: ``python .ci/release_notes.py v1.2.3``.

Exit code 2 with a sentence: the tag is not the version in pyproject.toml, or the section is missing, empty or
unreleased. It needs no package.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_CHARACTERS = 120_000
"""The page of a release takes 125,000."""


def notes(tag: str, root: Path = ROOT) -> str:
    """Return the section of the tag's version.

    Raises:
        ValueError: the tag and the files disagree; the message says how.
    """
    (version,) = re.findall(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(), flags=re.MULTILINE)
    if tag != f"v{version}":
        raise ValueError(f"the tag is {tag}, the version in pyproject.toml {version}: the tag must be v{version}")
    _, *sections = re.split(r"^## ", (root / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    heading, _, text = sections[0].partition("\n") if sections else ("", "", "")
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading.strip()):
        raise ValueError(f"the first heading of CHANGELOG.md is '{heading}': write '## {version} (YYYY-MM-DD)'")
    if not text.strip():
        raise ValueError(f"the section of {version} in CHANGELOG.md is empty")
    return text.strip()[:MAX_CHARACTERS] + "\n"


if __name__ == "__main__":
    try:
        sys.stdout.write(notes(sys.argv[1]))
    except ValueError as error:
        sys.stderr.write(f"release: {error}\n")
        sys.exit(2)
