"""Reserved memory of the closed form: two training steps, replayed by the allocator's model.

Lives here: programs of a block's forward and backward pass in real sizes and order, what data parallelism allocates
around them, and the optimizer's step.
"""
