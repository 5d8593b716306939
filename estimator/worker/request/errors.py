"""Errors whose message is a sentence for the user."""

from __future__ import annotations


class RefusedError(Exception):
    """The installed libraries or the user's code cannot do what the request asks for; answered as ``error``."""


class UnsupportedError(Exception):
    """The trace does not cover this job; answered as ``unsupported``."""
