"""DeepSpeed's ZeRO in the worker: the tensors that its engine allocates, of its sizes and at its times.

DeepSpeed is not imported: these modules follow its source (0.19.6: ``runtime/engine.py``, ``runtime/zero/``) and leave
out what allocates nothing, such as collectives. The trace runs as rank 0.

Lives here: stages 1 and 2 (``reduced_gradients``), stage 3 (``gathered_weights``, ``sharded_gradients`` and
``zero_linear``), the optimizer's step that they share, and the choice between them.
"""
