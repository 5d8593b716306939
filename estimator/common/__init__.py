"""Basics that every part of vramtop uses: errors with exit codes, sizes, paths, untrusted files, cancellation.

Lives here: what has no subject of its own but must be done in one way everywhere.
Callers: anyone. Imports nothing else of vramtop.
"""
