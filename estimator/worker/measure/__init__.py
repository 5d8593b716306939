"""Real training steps: the job's model and step on real tensors, on GPUs or on the CPU, and the memory that they take.

Lives here: a program of its own, which ``__main__`` is: building the model, running the steps, counting memory.
"""
