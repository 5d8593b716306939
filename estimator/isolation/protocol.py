"""Names shared by vramtop, the keeper that it starts, and the program that the keeper starts."""

LEVELS = ("overlay", "landlock", "python")
"""What keeps a program from real files, the best first: a view of its own, Landlock, or the keeper's refusals alone."""
SHARED, REPORT = "shared", "report.json"
"""Folder that the program may really change, and what the keeper tells, in the scratch folder."""
FILES = f"{SHARED}/files"
"""Folder in the scratch folder below which a program without a view has its files (``worker/rehearsal/scratch.py``)."""
VARIABLE = "REHEARSAL_KEEPER"
"""Variable with which the program learns how it is kept: the level, and the number of a socket of the keeper's."""
