"""The worker's protocol, the request it reads, the user's own code, and what tracing does not support.

Lives here: what each worker program needs before it imports torch.
Callers: all rooms of the worker.
"""
