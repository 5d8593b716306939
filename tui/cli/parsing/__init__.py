"""The arguments of all commands: their parsers, help, and what a first word means that is no command.

Lives here: the arguments of each command, the facts about them that help, completion and manual page show, and what
people type in place of a command. Nothing here imports what a command needs to run.
"""
