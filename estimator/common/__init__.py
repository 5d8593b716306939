"""Basics that every part of vramtop uses: errors with exit codes, sizes, paths, untrusted files, cancellation.

Lives here: code without a subject of its own that must work in one way everywhere.
"""
