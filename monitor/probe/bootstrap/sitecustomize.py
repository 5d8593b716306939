"""Put in front of PYTHONPATH by ``vramtop run``: starts the probe in each Python process that imports torch.

Costs nothing where torch is never imported. Runs under any Python 3; never raises into the user's program, and hands
on to the user's own ``sitecustomize``, which it hides.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Watcher:
    """Finds no module; sees that torch or transformers' trainer is looked for, and what to do once it is there."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name not in ("torch", "transformers.trainer"):
            return None
        try:
            others = [finder for finder in sys.meta_path if id(finder) != id(self) and hasattr(finder, "find_spec")]
            found = (finder.find_spec(name, path, target) for finder in others)  # type: ignore[arg-type]
            return _with_hook(name, next((spec for spec in found if spec is not None), None))  # type: ignore[no-untyped-call]
        except Exception:  # the others are asked again, and say themselves what is wrong
            return None


def _with_hook(name, spec):  # type: ignore[no-untyped-def]
    """The module's own spec, with a loader that starts the probe after it."""
    if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
        return None
    run = spec.loader.exec_module

    def exec_module(module):  # type: ignore[no-untyped-def]
        try:
            del spec.loader.exec_module  # the loader is as it was
        except Exception:  # nothing of ours may reach the user's program
            pass
        run(module)
        try:
            if name == "torch":
                _part("publisher").start()  # type: ignore[no-untyped-call]
            else:
                _part("trainer").add_callback(module)  # type: ignore[no-untyped-call]
        except Exception:  # nothing of ours may reach the user's program
            pass

    spec.loader.exec_module = exec_module
    return spec


def _part(name):  # type: ignore[no-untyped-def]
    """A module beside this folder: the one that the program itself has imported, else under a name of its own."""
    from importlib import import_module

    package = "vramtop.monitor.probe"
    if package + ".publisher" not in sys.modules:
        package = "_vramtop_probe"
        if package not in sys.modules:
            sys.modules[package] = type(sys)(package)
            sys.modules[package].__path__ = [os.path.dirname(_HERE)]
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing is left behind
    try:
        return import_module(package + "." + name)
    finally:
        sys.dont_write_bytecode = writes


def _hand_on() -> None:
    """The user's own ``sitecustomize``, as if this one had never been there; its errors are the user's to see."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if ours is not None:
            sys.modules["sitecustomize"] = ours  # the import that is under way looks for it
        if error.name != "sitecustomize":
            raise


if sys.version_info >= (3, 8):
    sys.meta_path.insert(0, _Watcher())  # type: ignore[arg-type]
_hand_on()
