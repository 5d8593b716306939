"""Model families: for each ``model_type`` a record of what its config leaves unstated and how its blocks use memory.

Lives here: the ``Family`` record, the parameters of each kind of block and head, one row per family, the registry.
Callers: ``model`` only.
"""
