"""A job in the user interface: loaded from what the user typed, edited in a form, saved to a file.

Lives here: flags and loading (no Textual) for the command line; the form and its dialogs for the screens.
"""
