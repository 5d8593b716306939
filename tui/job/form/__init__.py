"""The form of a job: its fields, what they hold, and the widgets that show and change them.

Lives here: fields and groups derived from ``Job``, the form's state without widgets, the search for a model, the form.
"""
