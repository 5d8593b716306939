"""Completions and the manual page: made from the parsers, up to date in the checkout, understood by their readers."""

import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import vramtop

from vramtop.estimator.job.gpu_catalogue import catalogue
from vramtop.tui.cli.commands.completion import FILES, FOLDER
from vramtop.tui.cli.main import COMMANDS

BASH = shutil.which("bash") or "bash"


@pytest.mark.parametrize("kind", FILES)
def test_the_files_are_up_to_date(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("shtab", reason="make completion writes them with it")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "docs" / "scripts"))
    from make_completion import shell_text

    assert (FOLDER / FILES[kind]).read_text() == shell_text(kind), "run make completion"


def completed(*words: str) -> list[str]:
    """What bash offers for the last of these words."""
    program = """
        source "$SCRIPT"
        vramtop() { case $2 in models) echo llama-3.1-8b gpt2 ;; pids) echo 12 ;; esac; }
        compopt() { :; }
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
        _shtab_vramtop
        printf '%s\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        [BASH, "-c", program, "bash", *words],
        env={"SCRIPT": str(FOLDER / FILES["bash"]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.split()


def test_bash_completes_commands_flags_and_their_values() -> None:
    assert set(COMMANDS) <= set(completed("vramtop", ""))
    assert completed("vramtop", "fit", "gp") == ["gpt2"]
    assert completed("vramtop", "fit", "--gpu-type", "h100") == [g.name for g in catalogue() if g.name[:4] == "h100"]
    assert completed("vramtop", "fit", "x", "--precision", "bf") == ["bf16-mixed", "bf16"]
    assert completed("vramtop", "fit", "x", "--set", "training.micro") == ["training.micro_batch="]
    assert completed("vramtop", "fit", "--show-secrets", "gp") == ["gpt2"]
    assert completed("vramtop", "attach", "1") == ["12"]
    assert completed("vramtop", "completion", "f") == ["fish"]
    assert {"--micro-batch", "--qlora"} <= set(completed("vramtop", "fit", "--"))


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_each_shell_has_each_command_and_flag(kind: str) -> None:
    script = vramtop("completion", kind, code=0).out
    assert all(command in script for command in COMMANDS)
    for flag in ("micro-batch", "replay", "timeout", "trust-remote-code"):
        assert f"{'-l ' if kind == 'fish' else '--'}{flag}" in script


def test_dynamic_words_are_models_and_nothing_for_other_kinds() -> None:
    assert "llama-3.1-8b" in vramtop("__complete", "models", code=0).out.split()
    assert not vramtop("__complete", "nothing", code=0).out.strip()
