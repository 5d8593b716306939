"""Mixtures of experts of other frameworks, operation by operation, in the place of transformers'.

Lives here: modules that save and allocate what torchtitan's and torchtune's do. Callers: ``build``, ``parallel``.
"""
