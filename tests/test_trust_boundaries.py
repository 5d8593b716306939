"""One module decides about trust: no other looks up programs, starts them by a bare name, or uses shared folders."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {
    str(file.relative_to(ROOT)): file.read_text()
    for package in ("estimator", "monitor", "tui")
    for file in (ROOT / package).rglob("*.py")
}
STARTS = ("subprocess.run", "subprocess.Popen", "asyncio.create_subprocess_exec", "os.execv", "os.execvpe", "os.system")
ATTRIBUTES = {start.rpartition(".")[2] for start in STARTS}
OTHER_STARTS = re.compile(
    r"\bos\.(?:spawn|posix_spawn|popen|execl|execvp\b|startfile)|subprocess\.(?:call|check_|getoutput|getstatus)"
    r"|create_subprocess_shell|import (?:Popen|which)|\bpty\.spawn"
)
OF_THE_USERS_CHOICE = {  # their own command, or a program that ``find_program`` has found
    "tui/cli/commands/run.py",
    "tui/cli/commands/wait.py",
    "monitor/fleet/remote.py",
}
OWN_INTERPRETER = {  # they run vramtop again, by the interpreter and with the paths that the process has already
    "estimator/crash/snapshot/snapshot_reader.py",
    "monitor/attach/automatic/start_following.py",
}
SHARED_FOLDERS = re.compile(r"(/var)?/tmp(/|$)|/dev/shm(/|$)")
WORTH_PARSING = re.compile("|".join([*map(re.escape, STARTS), "/tmp", "/dev/shm"]))  # noqa: S108 - looked for
KEEPER = "estimator/trace/isolated_run.py"
USE_SHARED_FOLDERS = {
    "estimator/isolation/keeper.py",  # gives its program a view of them, or Landlock's leave
    "estimator/isolation/overlay.py",  # gives its program a view of shared memory
    "estimator/isolation/watch.py",  # tells what is the program's own in shared memory
    "monitor/storage/reservations.py",  # checks owners of folder, files and processes
    "monitor/probe/snapshots.py",  # a file that must not exist yet, in the user's own run
    "monitor/preflight/checks/memory.py",  # asks how much is free in it
    "monitor/preflight/checks/temporary_folder.py",  # asks whether a file without a name can be made in it
}


@pytest.fixture(scope="module")
def found() -> tuple[list[tuple[str, ast.expr]], set[str]]:
    """What each module starts, with its name, and the modules that name a folder of all users: all are read once."""
    started, shared = [], set()
    for name in (name for name, source in SOURCES.items() if WORTH_PARSING.search(source)):
        for node in ast.walk(ast.parse(SOURCES[name])):
            if isinstance(node, ast.Call):
                if (
                    isinstance(node.func, ast.Attribute)
                    and node.func.attr in ATTRIBUTES
                    and ast.unparse(node.func) in STARTS
                ):
                    started.append((name, node.args[0]))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and SHARED_FOLDERS.match(node.value):
                shared.add(name)
    return started, shared


def test_programs_are_looked_up_in_one_module() -> None:
    assert {name for name, source in SOURCES.items() if "shutil.which" in source} == {"estimator/common/trust.py"}


def test_few_modules_start_programs_and_none_by_a_bare_name(found: tuple[list[tuple[str, ast.expr]], set[str]]) -> None:
    started, _ = found
    own = {"estimator/trace/start_python.py", KEEPER, *OWN_INTERPRETER}
    assert {name for name, _ in started} == own | OF_THE_USERS_CHOICE
    of_the_programs = ["estimator/worker/rehearsal/terminal.py"]  # hands on what the rehearsed program asks for
    assert [name for name, source in SOURCES.items() if OTHER_STARTS.search(source)] == of_the_programs
    for name, what in started:
        first = what.elts[0] if isinstance(what, ast.List) else what
        assert not isinstance(first, ast.Constant), f"{name} starts {ast.unparse(first)}: use find_program"


def test_vramtop_starts_itself_in_a_safe_environment() -> None:
    assert not [name for name in OF_THE_USERS_CHOICE if "sys.executable" in SOURCES[name]]
    assert re.search(r'_PYTHON, "-I", "-S", ', SOURCES[KEEPER])  # it gets the program's environment, and ignores it
    for name in OWN_INTERPRETER:
        source = SOURCES[name]
        assert re.search(r"sys\.executable,\s", source)
        assert "safe_environment(" in source
        # -c and -m import from the current folder
        assert 'cwd="/",' in source or "sys.path[:] = [entry for entry in sys.path if entry]" in source


def test_few_modules_use_folders_that_all_users_share(found: tuple[list[tuple[str, ast.expr]], set[str]]) -> None:
    assert found[1] == USE_SHARED_FOLDERS, "others can put files and links there: name the module, and why it is safe"
