"""The terminal device: its driver, input, colours, and sending only the cells that changed.

Lives here: everything that depends on Textual's internals or on the terminal's behaviour.
"""
