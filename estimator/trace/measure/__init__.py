"""Measured steps: a job's real steps in a process of their own, on GPUs or on the CPU, and what memory they take."""
