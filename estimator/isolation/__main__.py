"""``python -I -S isolation/__main__.py ARGUMENT...``: the keeper of one program (``keeper.py``)."""

import os
import sys

folder = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(folder))
__package__ = os.path.basename(folder)
__import__(__package__)
del sys.path[0]
from .keeper import main  # noqa: E402 - its folder is a package only now

main()
