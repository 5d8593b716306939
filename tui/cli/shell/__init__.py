"""What shells and ``man`` read: completions for bash, zsh and fish, and the manual page, all from the parsers.

Lives here: one module per format, and the words that only a running vramtop knows. ``make completion`` writes the files
that the wheel installs.
Callers: ``commands``, ``main``.
"""
