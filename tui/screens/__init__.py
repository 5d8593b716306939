"""The screens of the dashboard, one folder each.

Lives here: screens and the parts and text that only they use; ``base`` is the app as screens see it.
"""
