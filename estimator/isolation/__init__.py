"""Runs a program that changes nothing real: a view of its own of the files, and a record of what it looked at.

``python -I -S isolation/__main__.py ...`` keeps one program (``keeper.py``). It needs Linux and the standard library.
"""

LEVELS = ("overlay", "landlock", "python")
"""What keeps a program from real files, the best first: a view of its own, Landlock, or the keeper's refusals alone."""
SHARED, REPORT = "shared", "report.json"
"""Folder that the program may really change, and what the keeper tells, in the scratch folder."""
FILES = f"{SHARED}/files"
"""Folder in the scratch folder below which a program without a view has its files (``worker/rehearsal/scratch.py``)."""
VARIABLE = "REHEARSAL_KEEPER"
"""Variable with which the program learns how it is kept: the level, and the number of a socket of the keeper's."""
