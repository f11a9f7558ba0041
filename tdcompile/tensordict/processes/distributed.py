"""Tensordicts between processes, over public ``torch.distributed``.

Key names: :class:`DistributedMixin`. Between two ranks: ``send``, ``recv``, ``isend``, ``irecv``;
with the structure as well, ``init_remote`` and ``from_remote_init``. Over a group: ``all_reduce``,
``reduce``, ``broadcast``, ``all_gather``, ``scatter``, ``gather_and_stack``.

Invariants: entries are matched by key, whatever their order; tensordicts that do not match raise
:class:`~tdcompile.errors.DistributedError` and are never mixed up, unless ``check=False`` was
asked for; what brings its structure along is unpickled on arrival, as torch does with objects.
"""

from __future__ import annotations

import asyncio
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tdcompile.errors import DistributedError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.nontensor.data import LeafKind, NonTensorData
from tdcompile.tensordict.processes.packing import bytes_of, pack, to_bytes, unpack
from tdcompile.tensordict.processes.transfers import (
    Inventory,
    Peer,
    Pending,
    agree,
    device_of,
    format_place,
    inventory,
    is_member,
    named,
    ranks_of,
    receive_entries,
    receive_row,
    send_entries,
    send_row,
    stage,
    this_rank,
    wait_all,
)

__all__ = ["DistributedMixin"]


class DistributedMixin:
    """Transfers between ranks, and collectives."""

    __slots__ = ()

    # -- between two ranks ---------------------------------------------------------------------

    def send(
        self: Any,
        dst: Any = None,
        *,
        group: Any = None,
        group_dst: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
        check: bool = True,
    ) -> None:
        """Send the entries to a rank that calls :meth:`recv`; return when they may be changed.

        Args:
            dst: the global rank of the receiver; or a pipe, an object whose ``send(td)`` is called.
            group: the process group; the default one if None.
            group_dst: the rank of the receiver in `group`, instead of `dst`. The group need not be
                known to ``torch.distributed``.
            init_tag: tag of the first leaf, the next ones count up. Transfers that run at the same
                time between two ranks need tags of their own.
            pseudo_rand: take tags from a random number generator with the seed `init_tag`.
            consolidated: send all leaves as one message (tag 0), which copies them.
            check: send a header first, so that the receiver can compare keys, shapes and dtypes.
                It costs one message of 4 KiB. Both sides have to choose the same.

        Raises:
            DistributedError: if an entry cannot be sent, or a transfer fails.
            ValueError: unless exactly one receiver is given, and `group` with `group_dst`.
        """
        if hasattr(dst, "asend"):
            dst.send(self)
            return
        peer = Peer("send", "dst", dst, group, group_dst)
        wait_all(send_entries(self, peer, init_tag, pseudo_rand, consolidated, check)[0])

    def recv(
        self: Any,
        src: Any = None,
        *,
        group: Any = None,
        group_src: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
        check: bool = True,
    ) -> Any:
        """Receive what :meth:`send` sends, into the existing entries; leaves keep their storage.

        The arguments are those of the sender.

        Returns:
            The tag of the last leaf; None with `consolidated`; from a pipe, what it received.

        Raises:
            DistributedError: if the sender's keys, shapes or dtypes differ from ours (nothing is
                written then, and the sender does not notice), if a leaf cannot be written in place,
                or a transfer fails.
            ValueError: unless exactly one sender is given, and `group` with `group_src`.
        """
        if hasattr(src, "arecv"):
            return src.recv(self)
        peer = Peer("recv", "src", src, group, group_src)
        pending, tag = receive_entries(self, peer, init_tag, pseudo_rand, consolidated, check)
        wait_all(pending)
        return None if consolidated else tag

    def isend(
        self: Any,
        dst: int | None = None,
        *,
        group: Any = None,
        group_dst: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        return_early: bool = False,
        consolidated: bool = False,
        check: bool = True,
    ) -> Any:
        """Do what :meth:`send` does, and with `return_early` do not wait for it.

        Returns:
            With `return_early`, a list of transfers: call ``wait()`` on each before the leaves are
            changed. Otherwise the tag of the last leaf, None with `consolidated`.

        Raises:
            DistributedError: as :meth:`send`; ``wait()`` raises it too.
            ValueError: as :meth:`send`.
        """
        peer = Peer("isend", "dst", dst, group, group_dst)
        pending, tag = send_entries(self, peer, init_tag, pseudo_rand, consolidated, check)
        if return_early:
            return pending
        wait_all(pending)
        return None if consolidated else tag

    def irecv(
        self: Any,
        src: int | None = None,
        *,
        group: Any = None,
        group_src: int | None = None,
        return_premature: bool = False,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
        check: bool = True,
    ) -> list[Pending] | None:
        """Do what :meth:`recv` does, and with `return_premature` do not wait for it.

        Returns:
            With `return_premature`, a list of transfers: call ``wait()`` on each, in order, before
            the tensordict is read. Otherwise None.

        Raises:
            DistributedError: as :meth:`recv`. With `return_premature` the first ``wait()`` compares
                the structures, when leaves that fit by chance may have been written already.
            ValueError: as :meth:`recv`.
        """
        peer = Peer("irecv", "src", src, group, group_src)
        pending, _ = receive_entries(
            self, peer, init_tag, pseudo_rand, consolidated, check, early=return_premature
        )
        if return_premature:
            return pending
        wait_all(pending)
        return None

    async def asend(self: Any, dst: Any, **kwargs: Any) -> None:
        """Send without blocking the event loop; `dst` and the rest as for :meth:`send`.

        A pipe, an object with ``asend``, gets ``await dst.asend(td)``.
        """
        if hasattr(dst, "asend"):
            await dst.asend(self)
            return
        await asyncio.to_thread(wait_all, self.isend(dst, return_early=True, **kwargs))

    async def arecv(self: Any, src: Any, *, device: Any = None, **kwargs: Any) -> Any:
        """Receive without blocking the event loop; `src` and the rest as for :meth:`recv`.

        Args:
            src: a rank, or a pipe, an object with ``arecv``, of which ``await src.arecv(td,
                device=device)`` is returned.
            device: for a pipe only.
            kwargs: for a rank, what :meth:`recv` takes.

        Returns:
            The tensordict itself, or what the pipe gave.
        """
        if hasattr(src, "arecv"):
            return await src.arecv(self, device=device)
        await asyncio.to_thread(lambda: self.recv(src, **kwargs))
        return self

    def init_remote(
        self: Any,
        dst: int | None = None,
        group: Any = None,
        device: Any = None,
        use_broadcast: bool = False,
    ) -> None:
        """Send structure and content to a rank that calls :meth:`from_remote_init`.

        Args:
            dst: the global rank of the receiver; not used with `use_broadcast`.
            group: the process group.
            device: where the message is made; the device of the leaves if None.
            use_broadcast: send to every rank of the group, see :meth:`broadcast`.

        Raises:
            DistributedError: if a non-tensor value cannot be pickled, or a transfer fails.
            ValueError: if `dst` is needed and missing.
        """
        if use_broadcast:
            self.broadcast(dist.get_rank(), group=group, device=device)
            return
        peer = Peer("init_remote", "dst", dst, group, None)
        row, problem = _packed(self, device)
        wait_all(send_row(row, peer, 0, "the tensordict"))
        if problem is not None:
            raise problem

    @classmethod
    def from_remote_init(
        cls, src: int, group: Any = None, device: Any = None, use_broadcast: bool = False
    ) -> Any:
        """Receive what :meth:`init_remote` sends.

        Args:
            src: the global rank of the sender.
            group: the process group.
            device: where the leaves go; where they were if None.
            use_broadcast: as the sender.

        Returns:
            A new tensordict of the class that was sent, locked, and consolidated where that keeps
            all of it. It is unpickled: the sender has to be trusted. :meth:`recv` receives the
            next values into it.

        Raises:
            DistributedError: if the sender failed, or a transfer does.
        """
        if use_broadcast:
            return _broadcast(None, src, group, device)
        peer = Peer("from_remote_init", "src", src, group, None)
        return _unpacked(receive_row(peer, 0, "the tensordict"), device, str(peer))

    # -- over a group --------------------------------------------------------------------------

    def broadcast(self: Any, src: int, *, group: Any = None, device: Any = None) -> Any:
        """Return the tensordict of rank `src`, on every rank of the group.

        The other ranks may call it on any tensordict, an empty one for example.

        Args:
            src: a global rank.
            group: the process group.
            device: where the leaves go; where they were if None.

        Returns:
            A new tensordict of the class that was sent, locked, and consolidated where that keeps
            all of it; unpickled: `src` has to be trusted.

        Raises:
            DistributedError: on every rank, if the tensordict cannot be sent.
        """
        return _broadcast(self, src, group, device)

    def all_gather(self: Any, *, group: Any = None) -> list[Any]:
        """Return the tensordicts of all ranks, in the order of the ranks, on every rank.

        They may have different structures. They are as from :meth:`broadcast`: new, also our own,
        locked, and unpickled, so the ranks have to trust each other.

        Raises:
            DistributedError: on every rank, if a tensordict cannot be sent.
        """
        if not is_member(group):
            return []
        row, problem = _packed(self, None)
        sizes = _all_sizes(row.numel(), group)
        device = device_of(group) if row.device.type == "cpu" else row.device
        padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
        padded[: row.numel()].copy_(row)
        rows = [torch.empty_like(padded) for _ in sizes]
        with named("all_gather"):
            dist.all_gather(rows, padded, group=group)
        if problem is not None:
            raise problem
        return [
            _unpacked(row[:size], None, f"rank {rank} of the group")
            for rank, (row, size) in enumerate(zip(rows, sizes, strict=True))
        ]

    def scatter(
        self: Any,
        src: int,
        tensordicts: list[Any] | None = None,
        *,
        group: Any = None,
        device: Any = None,
    ) -> Any:
        """Return the tensordict that rank `src` has for this rank; every rank has to call it.

        Args:
            src: the global rank that sends.
            tensordicts: on `src` one tensordict a rank, of any structures; not used elsewhere.
            group: the process group.
            device: where the leaves go; where they were if None.

        Returns:
            A new tensordict, as from :meth:`broadcast`.

        Raises:
            DistributedError: on every rank, if there are more or fewer tensordicts than ranks, or
                one cannot be sent.
        """
        if not is_member(group):
            return self
        world = dist.get_world_size(group)
        is_source = dist.get_rank() == src
        rows: list[Tensor] = []
        problem: DistributedError | None = None
        if is_source:
            rows, problem = _rows_to_scatter(tensordicts, world)
        small = device_of(group)
        sizes = torch.tensor([row.numel() for row in rows] or [0] * world, device=small)
        with named("scatter"):
            dist.broadcast(sizes, src, group=group)
        largest = int(sizes.max())
        mine = torch.empty(largest, dtype=torch.uint8, device=small)
        padded = []
        for row in rows:
            padded.append(torch.zeros_like(mine))
            padded[-1][: row.numel()].copy_(row)
        with named("scatter"):
            dist.scatter(mine, padded if is_source else None, src=src, group=group)
        if problem is not None:
            raise problem
        own = int(sizes[dist.get_rank(group)])
        return _unpacked(mine[:own], device, f"rank {src}")

    def gather_and_stack(self: Any, dst: int, group: Any = None) -> Any:
        """Write the tensordicts of the other ranks into the rows of that of rank `dst`, in place.

        Args:
            dst: the global rank that receives. Its tensordict has one row less than there are
                ranks; the others come in the order of their ranks.
            group: the process group.

        Returns:
            The tensordict itself on `dst`, None on other ranks.

        Raises:
            DistributedError: on every rank, if rows and tensordicts do not have the same keys,
                shapes and dtypes, or `dst` has another number of rows.
        """
        if not is_member(group):
            return None
        others = [rank for rank in ranks_of(group) if rank != dst]
        problem = None
        nodes: dict[int, Any] = {}
        rows: dict[int, Inventory] = {}
        try:
            if dist.get_rank() != dst:
                nodes = {others.index(dist.get_rank()): self}
            else:
                nodes = dict(enumerate(_rows_to_fill(self, len(others))))
            rows = {place: _rowwise(inventory(node)) for place, node in nodes.items()}
        except DistributedError as error:
            problem = error
        agree("gather_and_stack", group, rows, len(others), problem)
        for place, node in nodes.items():
            if dist.get_rank() != dst:
                peer = Peer("gather_and_stack", "dst", dst, group, None)
                wait_all(send_entries(node, peer, 0, False, False, False)[0])
            else:
                peer = Peer("gather_and_stack", "src", others[place], group, None)
                wait_all(receive_entries(node, peer, 0, False, False, False)[0])
                if rows[place].others and not self._is_stack:
                    # A row has a value of its own for each entry that is no tensor.
                    from tdcompile.tensordict.dense import TensorDict

                    row = TensorDict({}, node.batch_size)
                    for path, parent, key, _ in rows[place].others:
                        row.set(path, parent.get(key))
                    self[place] = row
        return self if dist.get_rank() == dst else None

    def all_reduce(
        self: Any,
        op: Any = None,
        *,
        group: Any = None,
        async_op: bool = False,
        bucket_bytes: int | None = None,
        check: bool = True,
    ) -> list[Pending] | None:
        """Reduce each leaf over all ranks, in place; entries are matched by key.

        Non-tensor entries stay as they are. In compiled code it is one coalesced collective for
        each dtype and stays in the graph (without `async_op`).

        Args:
            op: a ``torch.distributed.ReduceOp``; the sum if None.
            group: the process group.
            async_op: return the transfers instead of waiting for them.
            bucket_bytes: pack leaves of one dtype together up to this size, which copies them, and
                pays with many small leaves.
            check: compare keys, shapes and dtypes of all ranks first: one more collective, of 40
                bytes. Without it the ranks have to be alike; if they are not, the call may hang or
                mix up entries.

        Returns:
            None; with `async_op` a list: call ``wait()`` on each before the leaves are used.

        Raises:
            DistributedError: on every rank, if the tensordicts differ; or if a leaf cannot be
                reduced.
        """
        if not is_member(group):
            return [] if async_op else None
        op = dist.ReduceOp.SUM if op is None else op
        pending = _reduce(
            self,
            "all_reduce",
            lambda tensor: dist.all_reduce(tensor, op, group=group, async_op=True),
            group,
            bucket_bytes,
            check,
        )
        if async_op:
            return pending
        wait_all(pending)
        return None

    def reduce(
        self: Any,
        dst: int,
        op: Any = None,
        async_op: bool = False,
        return_premature: bool = False,
        group: Any = None,
        *,
        bucket_bytes: int | None = None,
        check: bool = True,
    ) -> list[Pending] | None:
        """Reduce each leaf over all ranks, into the tensordict of rank `dst`, in place.

        On the other ranks the leaves hold no defined values afterwards, as with
        ``torch.distributed.reduce``.

        Args:
            dst: a global rank.
            op: a ``torch.distributed.ReduceOp``; the sum if None.
            async_op: run all transfers at once.
            return_premature: with `async_op`, return the transfers instead of waiting for them.
            group: the process group.
            bucket_bytes: as for :meth:`all_reduce`.
            check: as for :meth:`all_reduce`.

        Returns:
            None; with `return_premature` a list: call ``wait()`` on each before the leaves are
            used.

        Raises:
            DistributedError: as :meth:`all_reduce`.
        """
        if not is_member(group):
            return [] if async_op and return_premature else None
        op = dist.ReduceOp.SUM if op is None else op
        pending = _reduce(
            self,
            "reduce",
            lambda tensor: dist.reduce(tensor, dst, op, group=group, async_op=True),
            group,
            bucket_bytes,
            check,
            writes=dist.get_rank() == dst,
        )
        if async_op and return_premature:
            return pending
        wait_all(pending)
        return None


def _reduce(
    td: Any,
    operation: str,
    start: Any,
    group: Any,
    bucket_bytes: int | None,
    check: bool,
    writes: bool = True,
) -> list[Pending]:
    found, staged, problem = Inventory(), [], None
    try:
        found = inventory(td)
        staged = stage(found, bucket_bytes)
    except DistributedError as error:
        problem = error
    if check:
        agree(operation, group, {} if problem else {0: found}, 1, problem)
    elif problem is not None:
        raise problem
    pending: list[Pending] = []
    for item in staged:
        what = f"{operation} of {item.what}"
        try:
            with named(what):
                work = start(item.tensor)
        except DistributedError:
            # The others are under way: nobody may change their memory before they are done.
            wait_all(pending)
            raise
        finish = item.finish if writes else None
        pending.append(Pending(work, what, finish, kept=item))
    return pending


# ---- tensordicts with their structure ----------------------------------------------------------

# What stands before the bytes: is it a tensordict, or the text of an error?
_GOOD, _BAD = 1, 0


def _packed(td: Any, device: Any) -> tuple[Tensor, DistributedError | None]:
    """Return bytes to send, and what went wrong; the receivers get to know it, too."""
    try:
        row = pack(_consolidated(td, device))
    except Exception as error:
        problem = DistributedError(
            f"{this_rank()}: expected entries that can be pickled, found {error}"
        )
        return to_bytes(bytes([_BAD]) + str(problem).encode()), problem
    return torch.cat([row.new_full((_PREFIX,), _GOOD), row]), None


# Keeps the leaves aligned.
_PREFIX = 64


def _consolidated(td: Any, device: Any) -> Any:
    """Return the tensordict as it is to arrive: in one block of memory, if that keeps it all."""
    if not isinstance(td, torch.nn.Module) and not _has_odd_entries(td):
        return td.consolidate(device=device)
    return td if device is None else td.to(device)


def _has_odd_entries(td: Any) -> bool:
    """Tell whether there is anything but dense tensors and single values in a tensordict."""
    if td._is_stack:
        return True
    for value in td.values():
        if isinstance(value, Tensor):
            if isinstance(value, LeafKind) or value.layout is not torch.strided:
                return True
            if value.requires_grad or value.is_nested:
                return True
        elif isinstance(value, TensorCollection):
            if _has_odd_entries(value):
                return True
        elif type(value) is not NonTensorData:
            return True
    return False


def _unpacked(row: Tensor, device: Any, who: str) -> Any:
    if int(row[0]) == _BAD:
        text = bytes_of(row)[1:].decode()
        raise DistributedError(f"{this_rank()}: {who} could not send its tensordict: {text}")
    td = unpack(row[_PREFIX:])
    # As what consolidate() returns.
    return (td if device is None else td.to(device)).lock_()


def _broadcast(td: Any, src: int, group: Any, device: Any) -> Any:
    if not is_member(group):
        return td
    is_source = dist.get_rank() == src
    row, problem = _packed(td, device) if is_source else (None, None)
    small = device_of(group)
    size = torch.tensor([0 if row is None else row.numel()], device=small)
    with named(f"broadcast from rank {src}"):
        dist.broadcast(size, src, group=group)
        if row is None:
            row = torch.empty(int(size), dtype=torch.uint8, device=small)
        dist.broadcast(row, src, group=group)
    if problem is not None:
        raise problem
    return _unpacked(row, device, f"rank {src}")


def _all_sizes(size: int, group: Any) -> list[int]:
    mine = torch.tensor([size], device=device_of(group))
    sizes = [torch.zeros_like(mine) for _ in range(dist.get_world_size(group))]
    with named("the exchange of sizes"):
        dist.all_gather(sizes, mine, group=group)
    return [int(size) for size in sizes]


def _rows_to_scatter(
    tensordicts: list[Any] | None, world: int
) -> tuple[list[Tensor], DistributedError | None]:
    number = None if tensordicts is None else len(tensordicts)
    if tensordicts is None or number != world:
        problem = DistributedError(
            f"{this_rank()}: expected {world} tensordicts to scatter, one a rank, found {number}"
        )
        return [to_bytes(bytes([_BAD]) + str(problem).encode())] * world, problem
    rows, problems = zip(*(_packed(td, None) for td in tensordicts), strict=True)
    first = next((problem for problem in problems if problem is not None), None)
    if first is not None:
        # All ranks are told, not only the one whose tensordict it is.
        return [to_bytes(bytes([_BAD]) + str(first).encode())] * world, first
    return list(rows), None


def _rows_to_fill(td: Any, number: int) -> list[Any]:
    if len(td.batch_size) == 0 or td.batch_size[0] != number:
        raise DistributedError(
            f"{this_rank()}: expected a tensordict with {number} rows, one for each other rank, "
            f"found batch size {list(td.batch_size)}"
        )
    return list(td.unbind(0))


def _rowwise(found: Inventory) -> Inventory:
    for path, _, _, _ in found.others:
        if any(isinstance(part, int) for part in path):
            raise DistributedError(
                f"{this_rank()}: expected no non-tensor values within a nested stack to write into "
                f"rows, found one at {format_place(path)}: leave it out, or use all_gather"
            )
    return found
