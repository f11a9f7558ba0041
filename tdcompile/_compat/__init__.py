"""The seam: the only folder that names private torch.

Rooms above import what they need from its modules by job: :mod:`tdcompile._compat.dynamo`
(trackers, sources, guards, side effects), :mod:`tdcompile._compat.backends` (backend registry),
:mod:`tdcompile._compat.inductor` (Inductor hand-over), :mod:`tdcompile._compat.slots` (hook names
that moved between releases), :mod:`tdcompile._compat.version` and
:mod:`tdcompile._compat.contract` (what is supported, and what is broken).

This file imports nothing: ``import tdcompile`` must not load ``torch._dynamo``.
"""
