"""Tensordicts in files and in shared memory.

Key names: ``memmap_tensor`` (a tensor that maps a file), ``kinds`` (what each kind of tensordict
is on disk), ``save`` and ``load`` (folders), ``archive`` (one zip file), ``consolidated`` (one
block of memory), ``pack`` (one tensor of features), ``methods`` (what a tensordict offers).

Invariant: nothing is unpickled unless the caller says so by name, nothing outside the folder that
was named is read or written, and a call that fails leaves files and tensordicts as they were.
"""
