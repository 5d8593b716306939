"""Operations of the worker: what a request can ask for.

Lives here: one module per operation, or two that belong together; each imports torch only when it is called.
"""
