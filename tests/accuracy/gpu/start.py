"""Starts the suite on a bare machine (``make gpu``): a Python with torch, this checkout, and what vramtop needs.

    start.py [--python PATH] [--wheels FOLDER] [--part PART] [--cpu] [--out FILE] ...

The Python with torch stays as it is: an environment in build/gpu sees its packages, and has those of vramtop's own that
are missing. They come from FOLDER, or ``wheels`` beside this checkout's README, if there is one; else from the package
index. Without any torch, torch and its companions are installed there too. Other options are those of ``suite.py``.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = ROOT / "build" / "gpu"
SUITE = Path(__file__).with_name("suite.toml")
TORCH = ("torch", "transformers", "accelerate", "peft")
USED_IF_THERE = ("bitsandbytes", "liger-kernel", "flash-attn", "nvitop")
"""What some rows need, and what vramtop is compared with; without them these rows say so."""
CANNOT_TELL = 3
_HAS_TORCH = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('torch', 'transformers'))))"
_SITE = "import sysconfig; print(sysconfig.get_path('purelib')); print(sysconfig.get_path('platlib'))"


def main(arguments: Sequence[str]) -> int:
    """Prepare the environment and run the suite in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="the Python that has torch (default: this one, else the checkout's .venv)")
    parser.add_argument("--wheels", type=Path, default=ROOT / "wheels", help="folder of wheels, if there is no index")
    options, others = parser.parse_known_args(arguments)
    known = [options.python] if options.python else [sys.executable, str(ROOT / ".venv" / "bin" / "python")]
    with_torch = next((each for each in known if _succeeds([each, "-c", _HAS_TORCH])), None)
    if options.python and with_torch is None:
        return _fail(f"{options.python} has no torch and transformers; leave out --python to install them")
    python = _environment(with_torch)
    wanted = [*_dependencies(), *(() if with_torch else TORCH)]
    if not _installed(python, wanted, options.wheels):
        return _fail(
            f"packages are missing and could not be installed: see above. Put wheels of them into {options.wheels} "
            f"(pip download --dest wheels {' '.join(map(repr, wanted))}), or name a Python that has them with --python"
        )
    for each in () if "--cpu" in others else USED_IF_THERE:
        _installed(python, ["--only-binary=:all:", each], options.wheels, quiet=True)
    words = [str(python), str(SUITE.parents[1] / "suite.py"), str(SUITE), "--python", str(python), *others]
    sys.stdout.flush()
    return os.execv(python, words)  # noqa: S606 - the suite in place of this program


def _environment(with_torch: str | None) -> Path:
    """Return the Python of a new environment in which this checkout, and the packages of a Python with torch, are."""
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    subprocess.run([with_torch or sys.executable, "-m", "venv", "--without-pip", ENVIRONMENT], check=True)
    python = ENVIRONMENT / "bin" / "python"
    (ENVIRONMENT / "checkout" / "vramtop").mkdir(parents=True)
    for part in ("estimator", "monitor", "tui", "vramtop/__init__.py"):
        (ENVIRONMENT / "checkout" / "vramtop" / Path(part).name).symlink_to(ROOT / part)
    folders = [str(ENVIRONMENT / "checkout"), *(_output([with_torch, "-c", _SITE]) if with_torch else [])]
    site = Path(_output([str(python), "-c", _SITE])[0])
    (site / "gpu_suite.pth").write_text("".join(f"{folder}\n" for folder in dict.fromkeys(folders)), encoding="utf-8")
    command = python.with_name("vramtop")  # with -m, the checkout's own vramtop/ would be found first
    command.write_text(f"#!{python}\nfrom vramtop.tui.cli import main\nraise SystemExit(main())\n", encoding="utf-8")
    command.chmod(0o755)
    return python


def _dependencies() -> list[str]:
    """Return vramtop's requirements, as pyproject.toml has them: without markers, which are about old Pythons."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert listed is not None
    return [each for each in re.findall(r'"([^"]+)"', listed[1]) if ";" not in each or sys.version_info < (3, 11)]


def _installed(python: Path, requirements: Sequence[str], wheels: Path, *, quiet: bool = False) -> bool:
    """Install what is missing; pip looks at what the environment sees already."""
    offline = ["--no-index", "--find-links", str(wheels)] if wheels.is_dir() else []
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "--quiet"]
    return _succeeds([*pip, *offline, *requirements], quiet=quiet)


def _succeeds(command: Sequence[str], *, quiet: bool = True) -> bool:
    errors = subprocess.DEVNULL if quiet else None
    try:
        return subprocess.run(command, stdout=errors, stderr=errors, check=False).returncode == 0
    except OSError:
        return False


def _output(command: Sequence[str]) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def _fail(sentence: str) -> int:
    print(f"start.py: {sentence}", file=sys.stderr)
    return CANNOT_TELL


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
