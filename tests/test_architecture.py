"""docs/explanation/architecture.md: its picture is that of the imports, and the files it names exist."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()


def test_the_picture_shows_the_imports_of_today(tmp_path: Path) -> None:
    (tmp_path / "vramtop").mkdir()
    for package in ("estimator", "monitor", "tui", "vramtop/__init__.py"):
        (tmp_path / "vramtop" / Path(package).name).symlink_to(ROOT / package)
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from make_architecture import PICTURE, picture\n"
        "sys.exit(picture() != PICTURE.read_text())\n"
    )
    command = [sys.executable, "-c", program, str(ROOT / "docs" / "scripts"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"run `make architecture`\n{done.stderr}"


def test_every_file_it_names_exists() -> None:
    named = set(re.findall(r"`((?:estimator|monitor|tui)/[\w/.]*)`", PAGE))
    assert len(named) > 15
    assert not {name for name in named if not (ROOT / name).exists()}


def test_every_name_it_gives_with_a_file_is_defined_there() -> None:
    pairs = re.findall(r"`([A-Za-z_.]+)`\s+\(`((?:estimator|monitor|tui)/[\w/]*\.py)`\)", PAGE)
    assert len(pairs) >= 5
    for name, file in pairs:
        defined = name.partition(".")[0]
        assert re.search(rf"^(class|def) {defined}\b", (ROOT / file).read_text(), re.MULTILINE), (name, file)
