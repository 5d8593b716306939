"""A job as a form: its settings as fields, what they hold, and the widgets that show and change them.

Lives here: fields derived from ``Job``, so that a new setting needs no change here; their state; their widgets.
"""
