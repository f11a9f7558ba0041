"""What passes between ranks: the leaves of a tensordict in one order, and messages made of them.

Key names: :class:`Inventory` (leaves and other entries, sorted by key path), :class:`Peer` (one
other rank), :class:`Pending` (a transfer under way), :func:`stage` (leaves -> tensors that a
backend takes), :func:`agree` (do all ranks hold the same structure).

Invariants: leaves are taken in the order of their key paths, so the order of insertion does not
matter; no leaf is written before the structures were compared (unless the caller said not to); a
leaf that is no row of its own memory (not contiguous, or sharing memory with another leaf) passes
through a copy.

Note [Header]. A message between two ranks starts with a header of a fixed size: a digest of the
structure that is sent, and as much of its description as fits. The receiver compares the digest
with that of its own entries before it takes anything in. If they differ, it takes the announced
tensors in and drops them, so that the sender is not left waiting, and raises.

Note [Agreement]. Before a collective, the ranks compare digests in one small reduction. Only if
they differ are descriptions gathered; then each rank raises the same error.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import random
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from tdcompile.errors import DistributedError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.processes.packing import ALIGNMENT, bytes_of, copy_bytes, to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_Path = tuple[str | int, ...]

_HEADER_NBYTES = 4096
_HEADER = struct.Struct("<qqi")
# Digests are two positive numbers: their negatives are taken.
_DIGEST = struct.Struct("<qq")


@dataclass(slots=True)
class Leaf:
    """A tensor ``(*B, *F)`` and where it is; an element of a stack counts as a number."""

    path: _Path
    tensor: Tensor


@dataclass(slots=True)
class Inventory:
    """What a tensordict holds, at every depth, sorted by key path."""

    leaves: list[Leaf] = field(default_factory=list)
    # Path, the tensordict that holds the entry, its key, the entry.
    others: list[tuple[_Path, Any, str, Any]] = field(default_factory=list)

    def describe(self) -> dict[str, Any]:
        """Return paths, dtypes and shapes as JSON has them."""
        leaves = [
            [leaf.path, str(leaf.tensor.dtype).removeprefix("torch."), list(leaf.tensor.shape)]
            for leaf in self.leaves
        ]
        return {"leaves": leaves, "others": [other[0] for other in self.others]}

    def digest(self) -> tuple[int, int]:
        """Return two numbers that differ if paths, dtypes or shapes do; sizes of 1 do not count."""
        text = self.describe()
        for leaf in text["leaves"]:
            leaf[2] = [size for size in leaf[2] if size != 1]
        raw = hashlib.blake2b(json.dumps(text).encode(), digest_size=_DIGEST.size).digest()
        first, second = _DIGEST.unpack(raw)
        return abs(first) >> 1, abs(second) >> 1


def inventory(td: Any) -> Inventory:
    """List the entries of a tensordict of any kind.

    Raises:
        DistributedError: if a leaf is sparse or nested.
    """
    found = Inventory()
    _collect(td, (), found)
    found.leaves.sort(key=lambda leaf: _order(leaf.path))
    found.others.sort(key=lambda other: _order(other[0]))
    return found


def _collect(td: Any, prefix: _Path, found: Inventory) -> None:
    if td._is_stack:
        # What a stack reads as is a copy; the elements hold the tensors.
        for place, element in enumerate(td.tensordicts):
            _collect(element, (*prefix, place), found)
        return
    for key, value in td.items():
        path = (*prefix, key)
        if isinstance(value, Tensor):
            if value.layout is not torch.strided or value.is_nested:
                raise DistributedError(
                    f"expected dense leaves to send, found a tensor of layout {value.layout} at "
                    f"{format_place(path)}: convert it, or leave the key out (td.exclude)"
                )
            found.leaves.append(Leaf(path, value))
        elif isinstance(value, TensorCollection):
            _collect(value, path, found)
        else:
            found.others.append((path, td, key, value))


def _order(path: _Path) -> list[tuple[int, int, str]]:
    return [(0, 0, part) if isinstance(part, str) else (1, part, "") for part in path]


def format_place(path: Any) -> str:
    """Print where an entry is: ``td["n"]["x"]``, ``td["stack"][0]["x"]``."""
    return "td" + "".join(f"[{json.dumps(part)}]" for part in path)


# ---- one transfer ------------------------------------------------------------------------------


class Pending:
    """A transfer under way.

    Args:
        work: what torch returned, or None if there is nothing to wait for.
        what: names the transfer in errors.
        finish: called once the transfer is done.
        kept: kept alive until then.
    """

    __slots__ = ("_finish", "_is_waited_for", "_kept", "_what", "_work")

    def __init__(
        self, work: Any, what: str, finish: Callable[[], None] | None = None, kept: Any = None
    ) -> None:
        self._work = work
        self._what = what
        self._finish = finish
        self._kept = kept
        self._is_waited_for = False

    def is_completed(self) -> bool:
        """Tell whether ``wait()`` would return at once."""
        return self._work is None or bool(self._work.is_completed())

    def wait(self) -> bool:
        """Wait until the transfer is done and its values stand in the tensordict.

        Raises:
            DistributedError: if it failed.
        """
        if self._is_waited_for:
            return True
        self._is_waited_for = True
        if self._work is not None:
            with named(self._what):
                self._work.wait()
        if self._finish is not None:
            self._finish()
        self._kept = self._finish = None
        return True


class named:
    """Context that turns what torch raises into an error with our rank and the key in it."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, (RuntimeError, ValueError)) and not isinstance(
            error, DistributedError
        ):
            raise DistributedError(f"{this_rank()}: {self._what} failed: {error}") from error


def wait_all(pending: Iterable[Pending]) -> None:
    """Wait for all transfers, also after one has failed; raise the first error."""
    first: BaseException | None = None
    for transfer in pending:
        try:
            transfer.wait()
        except DistributedError as error:
            first = first or error
    if first is not None:
        raise first


def this_rank() -> str:
    """Name this process in a message."""
    if dist.is_available() and dist.is_initialized():
        return f"rank {dist.get_rank()}"
    return "this rank"


def device_of(group: Any) -> torch.device:
    """Return the device on which a group passes small messages."""
    try:
        name = str(dist.get_backend(group))
    except (ValueError, RuntimeError, KeyError):
        name = str(group.name())
    if name == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


# ---- between two ranks -------------------------------------------------------------------------


class Peer:
    """The other rank of a transfer.

    Args:
        operation: name of the method, for messages.
        argument: what the method calls the rank, ``"dst"`` or ``"src"``.
        rank: its global rank.
        group: the process group.
        group_rank: its rank in `group`; messages then go through the group itself, which need not
            be known to ``torch.distributed``.

    Raises:
        ValueError: unless exactly one of both ranks is given, and the group with `group_rank`.
        DistributedError: if the group has no such rank.
    """

    __slots__ = ("_group", "_is_direct", "_rank", "operation")

    def __init__(
        self, operation: str, argument: str, rank: Any, group: Any, group_rank: Any
    ) -> None:
        if group_rank is not None and group is None:
            raise ValueError(f"group_{argument} requires `group`: pass the group it counts in")
        if rank is not None and group_rank is not None:
            raise ValueError(
                f"{argument} and group_{argument} are mutually exclusive: found {rank} and "
                f"{group_rank}, pass one of them"
            )
        if rank is None and group_rank is None:
            raise ValueError(f"Exactly one of {argument} and group_{argument} is needed")
        self.operation = operation
        self._group = group
        self._is_direct = group_rank is not None
        self._rank = group_rank if self._is_direct else rank
        # A backend may wait for ever for a rank that is not there.
        if self._is_direct:
            ranks: Any = range(group.size())
        else:
            ranks = ranks_of(group) if dist.is_initialized() else None
        if ranks is not None and self._rank not in ranks:
            raise DistributedError(
                f"{this_rank()}: {operation}: expected {argument} to be one of the ranks "
                f"{list(ranks)}, found {self._rank!r}"
            )

    @property
    def device(self) -> torch.device:
        """Where small messages are made."""
        return device_of(self._group)

    def __str__(self) -> str:
        return f"rank {self._rank}{' of the group' if self._is_direct else ''}"

    def send(self, tensor: Tensor, tag: int, what: str) -> Pending:
        """Start to send a contiguous tensor."""
        what = f"{self.operation} of {what} to {self}"
        with named(what):
            if self._is_direct:
                work = self._group.send([tensor], self._rank, tag)
            else:
                work = dist.isend(tensor, self._rank, group=self._group, tag=tag)
        return Pending(work, what, kept=tensor)

    def receive(
        self, tensor: Tensor, tag: int, what: str, finish: Callable[[], None] | None = None
    ) -> Pending:
        """Start to receive into a contiguous tensor."""
        what = f"{self.operation} of {what} from {self}"
        with named(what):
            if self._is_direct:
                work = self._group.recv([tensor], self._rank, tag)
            else:
                work = dist.irecv(tensor, self._rank, group=self._group, tag=tag)
        return Pending(work, what, finish, kept=tensor)


def tags_of(number: int, init_tag: int, pseudo_rand: bool) -> list[int]:
    """Return a tag for each of `number` messages, at least one."""
    number = max(number, 1)
    if not pseudo_rand:
        return [init_tag + place for place in range(number)]
    generator = random.Random(init_tag)
    return [generator.randrange(1 << 30) for _ in range(number)]


def send_entries(
    td: Any, peer: Peer, init_tag: int, pseudo_rand: bool, consolidated: bool, check: bool
) -> tuple[list[Pending], int]:
    """Start to send all entries; return the transfers and the last tag."""
    found = inventory(td)
    values = _pickled(found) if found.others else b""
    tags = tags_of(len(found.leaves), 0 if consolidated else init_tag, pseudo_rand)
    pending = []
    if check:
        pending.append(peer.send(_header(found, consolidated).to(peer.device), tags[0], "header"))
    if consolidated:
        row, _ = _row_of(found, peer, fill=True)
        if row.numel():
            pending.append(peer.send(row, tags[0], "the leaves"))
    else:
        for leaf, tag in zip(found.leaves, tags, strict=False):
            if leaf.tensor.numel():
                tensor = _plain(leaf.tensor).contiguous()
                pending.append(peer.send(tensor, tag, format_place(leaf.path)))
    if values:
        pending += send_row(to_bytes(values), peer, tags[-1], "the non-tensor values")
    return pending, tags[-1]


def receive_entries(
    td: Any,
    peer: Peer,
    init_tag: int,
    pseudo_rand: bool,
    consolidated: bool,
    check: bool,
    early: bool = False,
) -> tuple[list[Pending], int]:
    """Start to receive all entries in place; return the transfers and the last tag.

    With `early` the header is not waited for: the first transfer compares it.
    """
    found = inventory(td)
    for leaf in found.leaves:
        _check_writable(leaf)
    tags_from = 0 if consolidated else init_tag
    tags = tags_of(len(found.leaves), tags_from, pseudo_rand)
    pending = []
    if check:
        header = torch.zeros(_HEADER_NBYTES, dtype=torch.uint8, device=peer.device)

        def compare() -> None:
            drain = None if early else lambda number: tags_of(number, tags_from, pseudo_rand)
            _compare_header(header, found, consolidated, peer, drain)

        first = peer.receive(header, tags[0], "header", compare)
        if not early:
            first.wait()
        pending.append(first)
    if consolidated:
        row, finish = _row_of(found, peer, fill=False)
        if row.numel():
            pending.append(peer.receive(row, tags[0], "the leaves", finish))
    else:
        for leaf, tag in zip(found.leaves, tags, strict=False):
            if leaf.tensor.numel():
                pending.append(_receive_leaf(leaf, peer, tag))
    if found.others:
        pending.append(
            Pending(None, "", lambda: _receive_values(found, peer, tags[-1]), kept=found)
        )
    return pending, tags[-1]


def _receive_leaf(leaf: Leaf, peer: Peer, tag: int) -> Pending:
    place = format_place(leaf.path)
    target = _plain(leaf.tensor)
    if target.is_contiguous():
        return peer.receive(target, tag, place)
    copied = torch.empty_like(target, memory_format=torch.contiguous_format)
    return peer.receive(copied, tag, place, lambda: _write(target, copied))


def _plain(tensor: Tensor) -> Tensor:
    """Return the values as a backend takes them: outside autograd, with nothing left to do."""
    return tensor.detach().as_subclass(Tensor).resolve_conj().resolve_neg()


def _write(target: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        target.copy_(value)


def _check_writable(leaf: Leaf) -> None:
    tensor = leaf.tensor
    steps = zip(tensor.stride(), tensor.shape, strict=True)
    if any(step == 0 and size > 1 for step, size in steps):
        raise DistributedError(
            f"expected leaves that can be written in place, found an expanded tensor at "
            f"{format_place(leaf.path)}: make a copy first (td.clone() or td.contiguous())"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise DistributedError(
            f"expected leaves that can be written in place, found a conjugated view at "
            f"{format_place(leaf.path)}: make a copy first (td.clone())"
        )


def _row_of(found: Inventory, peer: Peer, *, fill: bool) -> tuple[Tensor, Callable[[], None]]:
    """Return one row of bytes for all leaves, and a function that writes it into them."""
    starts, end = [], 0
    for leaf in found.leaves:
        starts.append(end)
        nbytes = leaf.tensor.numel() * leaf.tensor.dtype.itemsize
        end += -(-nbytes // ALIGNMENT) * ALIGNMENT
    device = found.leaves[0].tensor.device if found.leaves else peer.device
    row = torch.zeros(end, dtype=torch.uint8, device=device)
    if fill:
        for leaf, start in zip(found.leaves, starts, strict=True):
            copy_bytes(leaf.tensor, row, start)

    def finish() -> None:
        for leaf, start in zip(found.leaves, starts, strict=True):
            tensor = leaf.tensor
            piece = row[start : start + tensor.numel() * tensor.dtype.itemsize]
            _write(tensor, piece.view(tensor.dtype).view(tensor.shape))

    return row, finish


def _pickled(found: Inventory) -> bytes:
    values = []
    for path, _, _, value in found.others:
        try:
            values.append(pickle.dumps(value))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise DistributedError(
                f"expected non-tensor values that can be pickled, found "
                f"{type(getattr(value, 'data', value)).__name__} at {format_place(path)}: {error}"
            ) from error
    return pickle.dumps(values)


def _receive_values(found: Inventory, peer: Peer, tag: int) -> None:
    values = pickle.loads(bytes_of(receive_row(peer, tag, "the non-tensor values")))
    for (_, node, key, _), raw in zip(found.others, values, strict=True):
        node.set_(key, pickle.loads(raw))


def send_row(row: Tensor, peer: Peer, tag: int, what: str) -> list[Pending]:
    """Start to send bytes whose number the receiver does not know."""
    device = peer.device if row.device.type == "cpu" else row.device
    size = torch.tensor([row.numel()], device=peer.device)
    return [peer.send(size, tag, what), peer.send(row.to(device), tag, what)]


def receive_row(peer: Peer, tag: int, what: str, device: Any = None) -> Tensor:
    """Receive the bytes that :func:`send_row` sends."""
    size = torch.zeros(1, dtype=torch.int64, device=peer.device)
    peer.receive(size, tag, what).wait()
    row = torch.empty(int(size), dtype=torch.uint8, device=device or peer.device)
    peer.receive(row, tag, what).wait()
    return row


def _header(found: Inventory, consolidated: bool) -> Tensor:
    text = json.dumps({**found.describe(), "consolidated": consolidated}).encode()
    if len(text) > _HEADER_NBYTES - _HEADER.size:
        text = json.dumps({"number": len(found.leaves)}).encode()
    first, second = found.digest()
    raw = _HEADER.pack(first, second ^ consolidated, len(text)) + text
    return to_bytes(raw.ljust(_HEADER_NBYTES, b"\0"))


def _compare_header(
    header: Tensor,
    found: Inventory,
    consolidated: bool,
    peer: Peer,
    drain: Callable[[int], list[int]] | None,
) -> None:
    """Raise if what is announced is not what is here, see Note [Header].

    Args:
        header: what came.
        found: what is here.
        consolidated: whether one message is expected for all leaves.
        peer: where it came from.
        drain: gives the tags of a number of leaves; None if the leaves are under way already.
    """
    raw = bytes_of(header)
    first, second, length = _HEADER.unpack_from(raw)
    ours = found.digest()
    if (first, second) == (ours[0], ours[1] ^ consolidated):
        return
    try:
        theirs = json.loads(raw[_HEADER.size : _HEADER.size + length])
    except ValueError:
        theirs = {}
    if "leaves" not in theirs:
        problem = (
            f"found {theirs.get('number', 'an unknown number of')} leaves, of other keys, shapes "
            f"or dtypes than the {len(found.leaves)} here"
        )
    else:
        if drain is not None:
            _drain(theirs, peer, drain(len(theirs["leaves"])))
        problem = "; ".join(_differences(found.describe(), theirs, str(peer)))
        if not problem:
            problem = f"expected consolidated={consolidated} as here, found {not consolidated}"
    raise DistributedError(
        f"{this_rank()}: {peer.operation} from {peer}: {problem}: give both tensordicts the same "
        "keys, shapes and dtypes, or send the structure as well (init_remote)"
    )


def _drain(theirs: dict[str, Any], peer: Peer, tags: list[int]) -> None:
    """Take in what is announced and drop it."""
    sizes = []
    for _, dtype, shape in theirs["leaves"]:
        numel = 1
        for size in shape:
            numel *= size
        sizes.append(numel * getattr(torch, dtype).itemsize)
    if theirs["consolidated"]:
        sizes = [sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]
    for nbytes, tag in zip(sizes, tags, strict=False):
        if nbytes:
            row = torch.empty(nbytes, dtype=torch.uint8, device=peer.device)
            peer.receive(row, tag, "what is dropped").wait()
    if theirs["others"]:
        receive_row(peer, tags[-1], "what is dropped")


def _differences(ours: dict[str, Any], theirs: dict[str, Any], who: str) -> list[str]:
    """Say how two descriptions differ, by key path; at most three differences."""
    own = {tuple(path): (dtype, shape) for path, dtype, shape in ours["leaves"]}
    own.update({tuple(path): ("non-tensor", []) for path in ours["others"]})
    other = {tuple(path): (dtype, shape) for path, dtype, shape in theirs["leaves"]}
    other.update({tuple(path): ("non-tensor", []) for path in theirs["others"]})
    lines = []
    for path, here in own.items():
        if path not in other:
            lines.append(f"{format_place(path)} is here, not on {who}")
        elif other[path] != here:
            there = other[path]
            lines.append(
                f"{format_place(path)} is {here[0]}{here[1]} here, {there[0]}{there[1]} on {who}"
            )
    lines += [f"{format_place(path)} is on {who}, not here" for path in other if path not in own]
    more = len(lines) - 3
    return [*lines[:3], f"and {more} more"] if more > 0 else lines


# ---- over a group ------------------------------------------------------------------------------


def ranks_of(group: Any) -> list[int]:
    """Return the global ranks of a group, in the order of its own ranks."""
    if group is None:
        return list(range(dist.get_world_size()))
    ranks: list[int] = dist.get_process_group_ranks(group)
    return ranks


def is_member(group: Any) -> bool:
    """Tell whether this process takes part in collectives of `group`."""
    return dist.get_rank(group) >= 0


def agree(
    operation: str,
    group: Any,
    rows: dict[int, Inventory],
    num_rows: int = 1,
    problem: DistributedError | None = None,
) -> None:
    """Compare structures over a group; every rank of it has to call this.

    Args:
        operation: name of the method, for messages.
        group: the process group.
        rows: what this rank holds, for each thing that is compared.
        num_rows: how many things are compared.
        problem: an error of this rank alone; it raises this, the others raise as well.

    Raises:
        DistributedError: on each rank, if they differ, see Note [Agreement].
    """
    lowest = torch.iinfo(torch.int64).min
    marks = torch.full((num_rows, 5), lowest, dtype=torch.int64)
    marks[:, 4] = 0 if problem is None else 1
    for place, found in rows.items():
        first, second = found.digest()
        marks[place, :4] = torch.tensor([first, second, -first, -second])
    marks = marks.to(device_of(group))
    with named(f"{operation}: the comparison of structures"):
        dist.all_reduce(marks, dist.ReduceOp.MAX, group=group)
    highest = marks.tolist()
    if all(row[0] == -row[2] and row[1] == -row[3] and row[4] == 0 for row in highest):
        return
    text = {
        "rows": {place: found.describe() for place, found in rows.items()},
        "problem": None if problem is None else str(problem),
    }
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, text, group=group)
    if problem is not None:
        raise problem
    raise DistributedError(f"{this_rank()}: {operation}: {_disagreement(gathered, group)}")


def _disagreement(gathered: list[Any], group: Any) -> str:
    ranks = ranks_of(group)
    failed = [
        f"rank {rank} failed: {text['problem']}"
        for rank, text in zip(ranks, gathered, strict=True)
        if text["problem"] is not None
    ]
    if failed:
        return "; ".join(failed)
    own = dist.get_rank(group)
    mine = gathered[own]["rows"]
    lines = []
    for place, (rank, text) in enumerate(zip(ranks, gathered, strict=True)):
        if place != own:
            for row, description in text["rows"].items():
                if row in mine:
                    lines += _differences(mine[row], description, f"rank {rank}")
    lines = lines or ["other ranks differ from each other"]
    return "expected the same keys, shapes and dtypes on every rank, found: " + "; ".join(lines)


@dataclass(slots=True)
class Staged:
    """A contiguous tensor for a backend, and how its values get back into the leaves."""

    tensor: Tensor
    what: str
    finish: Callable[[], None] | None = None


def stage(found: Inventory, bucket_bytes: int | None) -> list[Staged]:
    """Return tensors that hold the leaves; which leaves go together is the same on each rank.

    Args:
        found: the leaves; empty ones are left out.
        bucket_bytes: pack leaves of one dtype and device together up to this size.

    Raises:
        DistributedError: if a leaf cannot be written in place.
    """
    for leaf in found.leaves:
        _check_writable(leaf)
    leaves = [leaf for leaf in found.leaves if leaf.tensor.numel() > 0]
    buckets: list[list[Leaf]] = []
    if bucket_bytes is None:
        buckets = [[leaf] for leaf in leaves]
    else:
        open_buckets: dict[Any, tuple[list[Leaf], int]] = {}
        for leaf in leaves:
            kind = leaf.tensor.dtype, leaf.tensor.device.type
            nbytes = leaf.tensor.numel() * leaf.tensor.dtype.itemsize
            bucket, filled = open_buckets.get(kind, ([], 0))
            if not bucket or filled + nbytes > bucket_bytes:
                bucket, filled = [], 0
                buckets.append(bucket)
            bucket.append(leaf)
            open_buckets[kind] = bucket, filled + nbytes
    taken: list[tuple[int, int]] = []
    return [_stage_bucket(bucket, taken) for bucket in buckets]


def _stage_bucket(bucket: list[Leaf], taken: list[tuple[int, int]]) -> Staged:
    what = ", ".join(format_place(leaf.path) for leaf in bucket[:3])
    if len(bucket) > 3:
        what += f" and {len(bucket) - 3} more"
    targets = [leaf.tensor.detach().as_subclass(Tensor) for leaf in bucket]
    if len(targets) == 1:
        target = targets[0]
        start = target.data_ptr()
        end = start + target.numel() * target.dtype.itemsize
        shares = any(first < end and start < last for first, last in taken)
        if target.is_contiguous() and not shares:
            taken.append((start, end))
            return Staged(target, what)
        # Taken now, before a reduction of another leaf changes the memory that they share.
        copied = target.clone(memory_format=torch.contiguous_format)
        return Staged(copied, what, lambda: _write(target, copied))
    flat = torch.cat([target.reshape(-1) for target in targets])

    def finish() -> None:
        pieces = torch.split(flat, [target.numel() for target in targets])
        for target, piece in zip(targets, pieces, strict=True):
            _write(target, piece.view(target.shape))

    return Staged(flat, what, finish)
