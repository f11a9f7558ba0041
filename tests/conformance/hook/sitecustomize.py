"""Puts ``tdcompile`` in the place of ``tensordict`` in every process of a run, spawned ones too."""

import os

if os.environ.get("CONFORMANCE_STANDIN"):
    import standin

    standin.install()
