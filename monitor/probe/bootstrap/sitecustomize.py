"""Starts the probe in each Python process that imports torch; ``vramtop run`` puts its folder first in PYTHONPATH.

Costs nothing if torch is never imported. Runs under any Python 3; never raises into the user's program, and imports
the user's own ``sitecustomize``, which it hides.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


class _ImportHook:
    """Import hook that finds no module itself; it wraps the loaders of torch and transformers' trainer."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name not in ("torch", "transformers.trainer"):
            return None
        try:
            others = [finder for finder in sys.meta_path if id(finder) != id(self) and hasattr(finder, "find_spec")]
            found = (finder.find_spec(name, path, target) for finder in others)  # type: ignore[arg-type]
            return _with_probe(name, next((spec for spec in found if spec is not None), None))  # type: ignore[no-untyped-call]
        except Exception:  # Python asks the other finders again, which report the error
            return None


def _with_probe(name, spec):  # type: ignore[no-untyped-def]
    """Return the module's own spec, with a loader that starts the probe after loading it."""
    if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
        return None
    run = spec.loader.exec_module

    def exec_module(module):  # type: ignore[no-untyped-def]
        try:
            del spec.loader.exec_module  # restores the loader
        except Exception:  # no exception of the probe may reach the user's program
            pass
        run(module)
        try:
            if name == "torch":
                _probe_module("publisher").start()  # type: ignore[no-untyped-call]
                _probe_module("optimizers").watch()  # type: ignore[no-untyped-call]
                if os.environ.get("VRAMTOP_SNAPSHOT_ON_OOM"):
                    folder = os.environ["VRAMTOP_SNAPSHOT_ON_OOM"]
                    _probe_module("snapshots").arm(folder)  # type: ignore[no-untyped-call]
            else:
                _probe_module("trainer").add_callback(module)  # type: ignore[no-untyped-call]
        except Exception:  # no exception of the probe may reach the user's program
            pass

    spec.loader.exec_module = exec_module
    return spec


def _probe_module(name):  # type: ignore[no-untyped-def]
    """Return a module of the probe: the one that the program itself has imported, else under a separate name."""
    package = "vramtop.monitor.probe"
    if package + ".publisher" not in sys.modules:
        package = "_vramtop_probe"
        if package not in sys.modules:
            sys.modules[package] = type(sys)(package)
            sys.modules[package].__path__ = [os.path.dirname(_HERE)]
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # leave no files behind
    try:
        __import__(package + "." + name)  # not importlib: the user may have a module of this name
        return sys.modules[package + "." + name]
    finally:
        sys.dont_write_bytecode = writes


def _import_users_sitecustomize() -> None:
    """Import the user's own ``sitecustomize``, without this one on the path; its errors are shown to the user."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if ours is not None:
            sys.modules["sitecustomize"] = ours  # the import in progress expects it
        if error.name != "sitecustomize":
            raise


if sys.version_info >= (3, 8):
    sys.meta_path.insert(0, _ImportHook())  # type: ignore[arg-type]
_import_users_sitecustomize()
