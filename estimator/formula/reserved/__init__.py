"""Reserved memory of the closed form: two training steps, replayed by the allocator's model.

Lives here: what a step allocates by the closed form's figures, block by block, what data parallelism allocates around
the blocks, and the optimizer's step.
"""
