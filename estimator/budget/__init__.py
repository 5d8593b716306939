"""The budget: memory by phase and component, the peak, its range, and the JSON form.

Lives here: the result of every estimate, as plain data without arithmetic of its own.
Callers: anyone. Budgets are built in ``formula`` and ``trace``.
"""
