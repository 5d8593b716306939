"""Put in front of PYTHONPATH by ``vramtop run``: starts the probe in each Python process that imports torch.

Costs nothing where torch is never imported. Runs under any Python 3; never raises into the user's program, and hands
on to the user's own ``sitecustomize``, which it hides.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Watcher:
    """Finds no module; sees that torch or transformers' trainer is looked for, and what to do once it is there."""

    def __init__(self) -> None:
        self._busy = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if self._busy or name not in ("torch", "transformers.trainer"):
            return None
        self._busy = True
        try:
            return _with_hook(name)
        except Exception:  # nothing of ours may reach the user's program
            return None
        finally:
            self._busy = False


def _with_hook(name: str) -> object:
    """The module's own spec, with a loader that starts the probe after it."""
    from importlib.util import find_spec

    spec = find_spec(name)
    if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
        return None
    run = spec.loader.exec_module

    def exec_module(module):  # type: ignore[no-untyped-def]
        run(module)
        try:
            publisher = _publisher()  # type: ignore[no-untyped-call]
            if name == "torch":
                publisher.start()
            else:
                publisher.add_callback(module)
        except Exception:  # nothing of ours may reach the user's program
            pass

    spec.loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


def _publisher():  # type: ignore[no-untyped-def]
    """The module beside this folder, under a name of its own."""
    name = "_vramtop_probe"
    if name not in sys.modules:
        module = type(sys)(name)
        module.__file__ = os.path.join(os.path.dirname(_HERE), "publisher.py")
        with open(module.__file__, encoding="utf-8") as file:
            code = compile(file.read(), module.__file__, "exec")
        sys.modules[name] = module
        exec(code, module.__dict__)
    return sys.modules[name]


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
