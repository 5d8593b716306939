"""A job in the user interface: read from what the user typed, shown as a form, saved to a file.

Lives here: ``job_argument`` (no Textual) for the command line, the form and its dialogs for the screens.
Callers: ``screens``, ``app`` and ``cli``.
"""
