"""Requests to the worker: the protocol, the fields of a request, the errors, and code that the user names.

Lives here: modules that need no torch at import.
"""
