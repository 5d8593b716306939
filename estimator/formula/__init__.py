"""The closed form: a budget from a job and a model's shape by arithmetic alone, in milliseconds, without torch.

Lives here: one module per component of a budget; ``plan`` holds their inputs, ``closed_form`` adds them up.
"""
