"""What workers call; they import this file, so it imports little."""

from __future__ import annotations

import os
import random
import sys
import time

import torch


def plus_one(td):
    return td.apply(lambda leaf: leaf + 1)


def first_leaf(td):
    return td["a"] + 1


def add_key(td):
    return td.clone().set("new", td["a"] * 2)


def large_only(td):
    return td.clone() if (td["a"] > 9).all() else None


def nothing(td):
    return None


def flattened(td):
    return td.reshape(-1)


def bump(td):
    td["a"].add_(1)


def draws(td):
    td["torch"] = torch.rand(td.batch_size)
    td["python"] = torch.full(td.batch_size, random.random())
    if "numpy" in sys.modules:
        td["numpy"] = torch.full(td.batch_size, sys.modules["numpy"].random.rand())
    return td


def process(td):
    return torch.full(td.batch_size[:1], os.getpid())


def threads(td):
    return torch.full(td.batch_size[:1], torch.get_num_threads())


class OddError(Exception):
    """Cannot be pickled: its constructor wants more than its arguments."""

    def __init__(self, first, second):
        super().__init__(first)


def fail_on_seven(td):
    if (td["a"] == 7).any():
        raise ValueError("seven is not liked")
    return td.clone()


def fail_oddly(td):
    raise OddError("odd", 2)


def end_process(td):
    os._exit(3)


def later_is_faster(td):
    time.sleep(0.002 * (20 - float(td["a"].flatten()[0])))
    return td.clone()


def interrupt(td):
    raise KeyboardInterrupt


def name_key(td):
    place = int(td["a"])
    return td.empty().set(f"key_{place % 2}", td["a"])


def check_class(td):
    assert type(td).__name__ == "Item"
    return type(td)(a=td.a + 1, batch_size=td.batch_size)


def send_back(incoming, outgoing, pipe):
    while True:
        td = incoming.get()
        if td is None:
            return
        outgoing.put(td)
        pipe.send(pipe.recv())


def add_in_place(pipe):
    td = pipe.recv()
    td["n", "x"].add_(1)
    pipe.send("done")


def label(td):
    return td.clone().set_non_tensor("label", f"{int(td['a'])}: {td['s']}")
