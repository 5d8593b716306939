"""The worker: a program for any interpreter with torch and transformers; it imports nothing of vramtop outside itself.

Lives here: the program (``__main__``), its operations, and what they need to build and trace a model.
Callers: ``estimator.trace`` starts it as a process; of its modules, vramtop itself imports the allocator model only.
"""
