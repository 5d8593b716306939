"""The command about the settings of vramtop itself.

Lives here: ``vramtop config``, and its lines and JSON. Callers: ``main``, by the command's name.
"""
