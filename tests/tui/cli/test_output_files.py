"""Files that the user names for output: another user's link on the way is never followed, also to replace a file."""

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from eventful_recording import write_recording

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.load_and_save import save_job
from vramtop.monitor.sources.recording import RecordingWriter
from vramtop.tui.cli.main import COMMANDS, build_parser, main
from vramtop.tui.cli.out_file import write_out
from vramtop.tui.cli.parsing.parser import CommandParser
from vramtop.tui.tty.terminal_app import TerminalApp

READ = {
    *("--config", "--prometheus-token-file", "--prometheus-ca", "--replay", "--job"),
    *("explain file", "report source"),
}
OF_THE_JOB = {"--output-dir", "--logging-dir"}  # settings of a trainer; vramtop writes none
IN_THE_USERS_PROGRAM = {"run --snapshot-on-oom"}  # a new file with O_NOFOLLOW, which replaces a link


def run(*words: str) -> None:
    """Run a command that refuses."""
    if main([*words]) == 2:
        raise InputError("refused")


def a_recording(path: Path) -> Path:
    recording = path.parents[1] / "recorded.jsonl"
    return recording if recording.exists() else write_recording(recording)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "report --out": lambda path: run("report", str(a_recording(path)), "--out", str(path), "--overwrite"),
    "record file": lambda path: RecordingWriter(path, overwrite=True),
    "rehearse --out": lambda path: write_out(path, "{}"),
    "program --out": lambda path: run("program", "gpt2", "--out", str(path), "--overwrite"),
}


def named_files() -> Iterator[str]:
    """Yield each argument that names a file or folder, with its command."""
    root = build_parser()
    (commands,) = (each.choices for each in root._actions if isinstance(each, argparse._SubParsersAction))
    for command, parser in [("", root), *commands.items()]:
        if isinstance(parser, CommandParser):
            parser.complete()
        for action in parser._actions:
            name = action.option_strings[0] if action.option_strings else f"{command} {action.dest}"
            if str(action.metavar).split("|")[0] in ("FILE", "FOLDER", "RECORDING") and name not in READ | OF_THE_JOB:
                yield name if " " in name else f"{command} {name}"


def test_every_argument_that_names_a_file_is_known() -> None:
    assert len(COMMANDS) > 15
    assert set(named_files()) == {*WRITERS, *IN_THE_USERS_PROGRAM}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
@pytest.mark.parametrize("where", ["the file", "a folder"])
@pytest.mark.parametrize("name", [*WRITERS, "a job"])
def test_another_users_link_is_not_followed(name: str, where: str, tmp_path: Path, capsys) -> None:
    write = WRITERS.get(name) or (lambda path: save_job(Job(name="x"), path, overwrite=True))
    file = "x.json"
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    own.mkdir()
    (own / file).write_text("root's own")
    link = theirs / file if where == "the file" else theirs
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(own / file if where == "the file" else own)
    os.lchown(link, 65534, 65534)
    with pytest.raises(InputError) as refused:
        write(theirs / file)
    said = capsys.readouterr().err or refused.value.message
    assert "belongs to another user; links of other users are not followed" in said
    assert (own / file).read_text() == "root's own"
    assert [*own.iterdir()] == [own / file]
    os.lchown(link, 0, 0)
    write(theirs / file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
async def test_a_picture_is_not_saved_through_another_users_link(in_folder) -> None:
    Path("own.svg").write_text("root's own")
    Path("picture.svg").symlink_to("own.svg")
    os.lchown("picture.svg", 65534, 65534)
    app = TerminalApp(colours="true", ascii_only=False)
    async with app.run_test(size=(80, 24)) as pilot:
        assert app.deliver_screenshot("picture.svg") is None
        await pilot.pause()
        assert "links of other users are not followed" in next(iter(app._notifications)).message
    assert Path("own.svg").read_text() == "root's own"
