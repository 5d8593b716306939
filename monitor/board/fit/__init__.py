"""Fit: whether a pending job fits the GPUs and the host's RAM, and on which GPUs its ranks are placed.

Lives here: ``check_fit`` (budget and available memory in, ``FitResult`` out) and the memory available on each device.
Callers: ``board``, ``preflight``, the fit check screen and the ``fit`` command.
"""
