"""Causes of a divergence: which settings or extra memory would explain what is observed.

Lives here: the tables of possible causes with their priors, and the search for the most plausible explanation.
"""
