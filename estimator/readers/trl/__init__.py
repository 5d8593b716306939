"""TRL's training methods: what their trainers hold beside the trained model, by TRL's version.

Lives here: a record per method, the defaults of its configuration, and the readers of what only TRL has (pairs of
sequences, losses, reference and reward models, generation). ``trainer`` reads what all users of transformers share.
"""
