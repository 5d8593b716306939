"""Names and home folders are removed from texts and paths."""

from pathlib import Path

import pytest

from vramtop.monitor.doctor.report import Redactor


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/zaphod/projects/secret/venv/bin/python3.11", "~/.../bin/python3.11"),
        ("/home/zaphod/.local/share/vramtop", "~/.local/share/vramtop"),
        ("/home/zaphod", "~"),
        ("/scratch/zaphod/bin/python", "/.../bin/python"),
        ("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15"),
        ("/usr/local/zaphod/lib/libnvidia-ml.so.1", "/usr/local/.../lib/libnvidia-ml.so.1"),
    ],
)
def test_paths_keep_their_meaning_without_the_owner(path, shown):
    assert Redactor(Path("/home/zaphod"), ["zaphod", "heart-of-gold"]).path(path) == shown


def test_a_home_with_a_name_of_every_machine_is_a_home() -> None:
    hide = Redactor(Path("/home/vramtop"), ["vramtop"])
    assert hide.path("/home/vramtop/.local/share/vramtop") == "~/.local/share/vramtop"
    assert hide.path("/home/vramtop/projects/bin/python") == "~/.../bin/python"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/trillian/x and /home/zaphod/y, /home/zaphod2", "/home/.../x and ~/y, /home/..."),
        ("on heart-of-gold.example, ZAPHOD's", "on ....example, ...'s"),
        ("bob bobsled sue", "... bobsled sue"),
        ("root in Ubuntu on nvidia", "root in Ubuntu on nvidia"),
    ],
)
def test_names_are_removed_from_texts(text, shown):
    hide = Redactor(Path("/home/zaphod"), ["zaphod", "heart-of-gold", "bob", "root", "ubuntu", "nvidia", ""])
    assert hide.redact_json({"a": [text]}) == {"a": [shown]}
