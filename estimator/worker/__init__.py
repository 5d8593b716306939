"""The worker: a program for any interpreter with torch and transformers; it imports nothing of vramtop outside itself.

Lives here: the program (``__main__``), its operations, and what they need to build and trace a model.
"""
