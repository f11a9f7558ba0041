"""What each kind of tensordict is on disk: one table, a row a kind.

Key names: :class:`Kind` (a row), :func:`register`, :func:`kind_of_value`, :func:`kind_of_meta`,
:class:`Node` and :class:`Leaf` (a tensordict laid out as folders and files).

The layout is that of the ``tensordict`` package: a folder a tensordict with a ``meta.json``, a
file ``<key>.memmap`` a tensor, a folder a nested tensordict or non-tensor value.

Invariant: saving and loading know no class of tensordicts but through this table. Metadata names
classes; a class is found among those that the program has, never imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.errors import DamagedFileError, StorageError, TensorDictShapeError
from tdcompile.tensordict.base import TensorDictBase
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.keys import format_entry
from tdcompile.tensordict.lazy.stack import LazyStackedTensorDict
from tdcompile.tensordict.nontensor.data import MetaData, NonTensorData, NonTensorDataBase
from tdcompile.tensordict.nontensor.stack import NonTensorStack
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor
from tdcompile.tensordict.storage import values
from tdcompile.tensordict.storage.paths import (
    DATA,
    DTYPES,
    META,
    bad_field,
    encode_key,
    file_stems,
    is_component,
    missing_file,
    parse_device,
    parse_dtype,
    parse_names,
    parse_shape,
    read_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdcompile.tensordict.storage.load import Loader

# Fields of metadata next to those of the entries; an entry of such a name goes into "_reserved".
_FIELDS = ("shape", "device", "_type", "_format_version", "_class", "_names", "_reserved")


class Leaf:
    """A tensor and the file that it goes to."""

    __slots__ = ("parts", "path", "tensor")

    def __init__(self, tensor: Tensor, parts: tuple[str, ...], path: tuple[str, ...]) -> None:
        self.tensor = tensor
        self.parts = parts  # of the file, below the root
        self.path = path  # of keys


class Node:
    """A tensordict or a non-tensor value, and the folder that it goes to."""

    __slots__ = ("children", "files", "kind", "parts", "path", "value")

    def __init__(
        self, value: Any, kind: Kind, parts: tuple[str, ...], path: tuple[str, ...]
    ) -> None:
        self.value = value
        self.kind = kind
        self.parts = parts
        self.path = path
        self.children: dict[str, Node | Leaf] = {}
        self.files: dict[str, bytes] = {}  # metadata, by name

    def walk(self) -> Any:
        """Yield this node and all below it, parents first."""
        yield self
        for child in self.children.values():
            if isinstance(child, Node):
                yield from child.walk()

    def leaves(self) -> list[Leaf]:
        """Return all leaves, those of a nested tensordict where it stands among the keys."""
        found: list[Leaf] = []
        for child in self.children.values():
            found.extend([child] if isinstance(child, Leaf) else child.leaves())
        return found


class SaveOptions:
    """How keys and values are written; without files, values are not turned into bytes."""

    __slots__ = ("allow_pickle", "robust_key", "with_files")

    def __init__(
        self, robust_key: bool = True, allow_pickle: bool = False, with_files: bool = True
    ) -> None:
        self.robust_key = robust_key
        self.allow_pickle = allow_pickle
        self.with_files = with_files


class Kind:
    """One row: how a kind of tensordict is written and read.

    Args:
        name: as the metadata of the holder calls it; empty for the name of the class.
        matches: whether a value is of this kind.
        tags: what ``_class`` or ``_type`` of the metadata may be.
        lay_out: fills ``node.children`` and ``node.files`` for a value.
        load: makes a value of the metadata in a folder: ``load(loader, parts, meta, batch_size)``,
            with the batch size of the holder.
        with_children: makes the same value with other children, on a device or ``None``:
            ``with_children(value, children, device)``.
        set_child: puts a tensor where another one is, in place.
    """

    __slots__ = ("lay_out", "load", "matches", "name", "set_child", "tags", "with_children")

    def __init__(
        self,
        name: str,
        matches: Callable[[Any], bool],
        tags: Callable[[str], bool],
        lay_out: Callable[[Node, SaveOptions], None],
        load: Callable[[Loader, tuple[str, ...], dict[str, Any], Any], Any],
        with_children: Callable[[Any, dict[str, Any], torch.device | None], Any],
        set_child: Callable[[Any, str, Any], None],
    ) -> None:
        self.name = name
        self.matches = matches
        self.tags = tags
        self.lay_out = lay_out
        self.load = load
        self.with_children = with_children
        self.set_child = set_child


_KINDS: list[Kind] = []


def register(kind: Kind) -> None:
    """Add a row; it is asked before those that are there."""
    _KINDS.insert(0, kind)


def kind_of_value(value: Any, path: tuple[str, ...]) -> Kind:
    """Return the row for a value.

    Raises:
        StorageError: if no row knows it.
    """
    for kind in _KINDS:
        if kind.matches(value):
            return kind
    where = f" at {format_entry(path)}" if path else ""
    raise StorageError(
        f"expected tensors, tensordicts and non-tensor values, found {type(value).__name__}{where}:"
        " it cannot be memory-mapped or saved; exclude the entry first"
    )


def kind_of_meta(meta: dict[str, Any], name: str) -> Kind:
    """Return the row for the metadata of a folder.

    Raises:
        DamagedFileError: if no row knows the class that it names.
    """
    found = [meta.get("_class"), meta.get("_type")]
    for tag in found:
        for kind in _KINDS:
            if isinstance(tag, str) and kind.tags(tag):
                return kind
    tag = next((tag for tag in found if isinstance(tag, str)), None)
    raise DamagedFileError(
        f"expected the class of a saved tensordict in {name}, found {tag!r}, which the program "
        "does not have: import the module that defines it, or restore the file"
    )


def lay_out(
    value: Any, options: SaveOptions, parts: tuple[str, ...] = (), path: tuple[str, ...] = ()
) -> Node:
    """Lay a tensordict out as folders and files; nothing is written.

    Raises:
        StorageError: if an entry cannot be saved.
    """
    node = Node(value, kind_of_value(value, path), parts, path)
    if len(path) > _MAX_DEPTH:
        raise StorageError(
            f"expected at most {_MAX_DEPTH} levels of nested tensordicts, found more: a tensordict "
            "that holds itself cannot be saved"
        )
    node.kind.lay_out(node, options)
    return node


_MAX_DEPTH = 200


# -- the dense kind ----------------------------------------------------------------------------


def lay_out_entries(node: Node, options: SaveOptions, entries: dict[str, Any]) -> dict[str, Any]:
    """Add a child for each entry to `node`; return the metadata of the entries, in order."""
    meta: dict[str, Any] = {}
    folders = [(key, not isinstance(value, Tensor)) for key, value in entries.items()]
    stems = file_stems(folders, options.robust_key)
    for (key, value), stem in zip(entries.items(), stems, strict=True):
        path = (*node.path, key)
        if isinstance(value, Tensor):
            child: Node | Leaf = Leaf(value, (*node.parts, stem + DATA), path)
            meta[key] = _tensor_meta(value, path)
        else:
            child = lay_out(value, options, (*node.parts, stem), path)
            meta[key] = {"type": child.kind.name or type(value).__name__}
        if stem not in (key, encode_key(key)):
            meta[key]["_file"] = stem
        node.children[key] = child
    return meta


def _tensor_meta(value: Tensor, path: tuple[str, ...]) -> dict[str, Any]:
    where = format_entry(path)
    if isinstance(value, UnbatchedTensor):
        raise StorageError(
            f"expected tensors with batch dimensions, found an UnbatchedTensor at {where}: exclude "
            "the entry, and save it on its own"
        )
    if value.is_nested:
        raise NotImplementedError(
            f"expected tensors of one shape, found a nested tensor at {where}: memmap does not "
            "support nested tensors; use a lazy stack of tensordicts or a padded tensor"
        )
    if value.layout != torch.strided or str(value.dtype) not in DTYPES:
        raise StorageError(
            f"expected a strided tensor of a plain dtype, found layout {value.layout} and dtype "
            f"{value.dtype} at {where}: convert it first (to_dense(), dequantize())"
        )
    if value.device.type == "meta":
        raise StorageError(
            f"expected a tensor with values, found one on the meta device at {where}: "
            "make its values first (td.to_empty or td.to a device)"
        )
    return {
        "device": "cpu",
        "shape": list(value.shape),
        "dtype": str(value.dtype),
        "is_nested": False,
    }


def dense_meta(td: Any, entries: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a dense tensordict with the metadata of its entries."""
    meta = {key: value for key, value in entries.items() if key not in _FIELDS}
    reserved = [
        [index, key, value] for index, (key, value) in enumerate(entries.items()) if key in _FIELDS
    ]
    meta["shape"] = list(td.batch_size)
    meta["device"] = "cpu"
    meta["_type"] = "<class 'tensordict._td.TensorDict'>"
    meta["_format_version"] = 1
    meta["_class"] = "tensordict:TensorDict"
    if td._names is not None and any(name is not None for name in td._names):
        meta["_names"] = list(td._names)
    if reserved:
        meta["_reserved"] = reserved
    return meta


def _lay_out_dense(node: Node, options: SaveOptions) -> None:
    entries = lay_out_entries(node, options, node.value._entries)
    node.files[META] = values.dump_json(dense_meta(node.value, entries))


def _load_dense(
    loader: Loader, parts: tuple[str, ...], meta: dict[str, Any], batch_size: Any
) -> Any:
    name = loader.source.describe((*parts, META))
    size = parse_shape(meta.get("shape"), name)
    names = parse_names(meta.get("_names"), len(size), name)
    device = parse_device(meta.get("device"), name)
    found = [(k, v) for k, v in meta.items() if k not in _FIELDS and isinstance(v, dict)]
    for item in meta.get("_reserved", []):
        if not (isinstance(item, list) and len(item) == 3 and isinstance(item[2], dict)):
            raise bad_field(name, "position, key and metadata of an entry", item)
        index, key, value = item
        if type(index) is not int or not isinstance(key, str) or not 0 <= index <= len(found):
            raise bad_field(name, "position and key of an entry", item)
        found.insert(index, (key, value))
    entries = {key: _load_entry(loader, parts, key, value, size) for key, value in found}
    if loader.device is not None:
        device = loader.device
    return TensorDict._from_entries(entries, size, device, names)


def _load_entry(
    loader: Loader, parts: tuple[str, ...], key: str, meta: dict[str, Any], size: torch.Size
) -> Any:
    name = f"{loader.source.describe((*parts, META))}, entry {key!r}"
    if "dtype" not in meta and "type" not in meta:
        raise bad_field(name, "a dtype and a shape, or the type of a nested tensordict", meta)
    is_tensor = "dtype" in meta
    suffix = DATA if is_tensor else ""
    stem = meta.get("_file")
    if stem is None:
        stem = find_stem(loader, parts, key, suffix)
    elif not isinstance(stem, str) or not is_component(stem):
        raise bad_field(name, "the name of a file", stem)
    if not is_tensor:
        value = loader.load((*parts, stem), size)
        if isinstance(value, TensorCollection) and value.batch_size[: len(size)] != size:  # type: ignore[attr-defined]
            raise _misfit(name, size, value.batch_size)  # type: ignore[attr-defined]
        return value
    if meta.get("is_nested"):
        raise NotImplementedError(f"{name}: nested tensors are not supported; save a lazy stack")
    shape, dtype = parse_shape(meta.get("shape"), name), parse_dtype(meta["dtype"], name)
    if shape[: len(size)] != size:
        raise _misfit(name, size, shape)
    return loader.tensor((*parts, stem + DATA), dtype, shape)


def _misfit(name: str, size: torch.Size, shape: Any) -> DamagedFileError:
    return bad_field(name, f"a shape that starts with the batch size {list(size)}", list(shape))


def find_stem(loader: Loader, parts: tuple[str, ...], key: str, suffix: str) -> str:
    """Return the name of an entry's file: the encoded key, or the bare key of old folders."""
    names = [encode_key(key)] if loader.robust_key else []
    if key not in names and is_component(key):
        names.append(key)
    for name in names:
        probe = (*parts, name + suffix) if suffix else (*parts, name, META)
        if loader.source.exists(probe):
            return name
    if not names:
        raise missing_file(loader.source.describe((*parts, encode_key(key) + suffix)))
    return names[0]


def _dense_with(value: Any, children: dict[str, Any], device: torch.device | None) -> Any:
    cls = type(value) if isinstance(value, TensorDict) else TensorDict
    return cls._from_entries(children, value.batch_size, device, value._names)


def _dense_set(value: Any, key: str, child: Any) -> None:
    value._entries[key] = child


DENSE = Kind(
    "TensorDict",
    lambda value: isinstance(value, TensorCollection) and isinstance(value._entries, dict),  # type: ignore[attr-defined]
    lambda tag: tag in ("tensordict:TensorDict", "<class 'tensordict._td.TensorDict'>"),
    _lay_out_dense,
    _load_dense,
    _dense_with,
    _dense_set,
)


# -- non-tensor values -------------------------------------------------------------------------

_TAG = "<class 'tensordict.tensorclass.{}'>"
_SINGLE = {"NonTensorData": NonTensorData, "MetaData": MetaData}


def _lay_out_value(node: Node, options: SaveOptions) -> None:
    if not options.with_files:
        return
    name = "MetaData" if isinstance(node.value, MetaData) else "NonTensorData"
    meta: dict[str, Any] = {"_type": _TAG.format(name)}
    data = node.value.data
    tuples = values.tuple_paths(data)
    if tuples is not None:
        meta["data"] = data
        meta["_metadata"] = {"tuples": tuples} if tuples else None
    else:
        meta["_metadata"] = None
        node.files["other.pickle"] = values.dump_pickle(
            {"data": data}, node.path, options.allow_pickle
        )
    meta["_is_non_tensor"] = True
    node.files[META] = values.dump_json(meta)


def _load_value(
    loader: Loader, parts: tuple[str, ...], meta: dict[str, Any], batch_size: Any
) -> Any:
    size = torch.Size(()) if batch_size is None else batch_size
    name = loader.source.describe((*parts, META))
    cls = _SINGLE["MetaData" if meta.get("_type") == _TAG.format("MetaData") else "NonTensorData"]
    if "data" in meta:
        extra = meta.get("_metadata")
        tuples = extra.get("tuples", []) if isinstance(extra, dict) else []
        return cls(values.restore_tuples(meta["data"], tuples, name), size)
    found = loader.unpickle((*parts, "other.pickle"))
    if not isinstance(found, dict) or "data" not in found:
        raise bad_field(loader.source.describe((*parts, "other.pickle")), "a value", found)
    return cls(found["data"], size)


def _keep(value: Any, children: dict[str, Any], device: torch.device | None) -> Any:
    return value._carried()


def _refuse(value: Any, key: str, child: Any) -> None:
    raise TensorDictShapeError(f"expected a tensordict to write {key!r} in, found {value!r}")


def _value_kind(name: str, matches: Callable[[Any], bool]) -> Kind:
    tags = (_TAG.format(name), f"tensordict:{name}")
    return Kind(name, matches, tags.__contains__, _lay_out_value, _load_value, _keep, _refuse)


VALUE = _value_kind("NonTensorData", lambda value: isinstance(value, NonTensorDataBase))
METADATA = _value_kind("MetaData", lambda value: isinstance(value, MetaData))


def _lay_out_values(node: Node, options: SaveOptions) -> None:
    if not options.with_files:
        return
    stack = node.value
    data = stack.tolist()
    tuples = values.tuple_paths(data)
    meta = {
        "_type": _TAG.format("NonTensorStack"),
        "_format_version": 1,
        "_class": "tensordict:NonTensorStack",
        "stack_dim": stack.stack_dim,
        "device": None if stack.device is None else str(stack.device),
        "data": "pickle.pkl" if tuples is None else data,
    }
    # Ours: lists of a batch and lists that are values look the same.
    meta["_batch_size"] = list(stack.batch_size)
    if tuples:
        meta["_tuples"] = tuples
    if tuples is None:
        node.files["pickle.pkl"] = values.dump_pickle(data, node.path, options.allow_pickle)
    node.files[META] = values.dump_json(meta)


def _load_values(
    loader: Loader, parts: tuple[str, ...], meta: dict[str, Any], batch_size: Any
) -> Any:
    name = loader.source.describe((*parts, META))
    data = meta.get("data")
    if data == "pickle.pkl":
        data = loader.unpickle((*parts, "pickle.pkl"))
    elif isinstance(data, list):
        data = values.restore_tuples(data, meta.get("_tuples", []), name)
    if not isinstance(data, list):
        raise bad_field(name, "the values of a stack as a list", data)
    device = parse_device(meta.get("device"), name)
    if "_batch_size" not in meta:
        return NonTensorStack.from_list(data, device)
    size = parse_shape(meta["_batch_size"], name)
    items: list[Any] = [data]
    for length in size:
        if any(not isinstance(item, list) or len(item) != length for item in items):
            raise bad_field(name, f"nested lists of the batch size {list(size)}", data)
        items = [part for item in items for part in item]
    return NonTensorStack._of(items, size, device)


VALUES = Kind(
    "NonTensorStack",
    lambda value: isinstance(value, NonTensorStack),
    lambda tag: tag in ("tensordict:NonTensorStack", _TAG.format("NonTensorStack")),
    _lay_out_values,
    _load_values,
    _keep,
    _refuse,
)


# -- tensorclasses: a dense tensordict in a folder of its own, and the name of the class ----------

_INNER = "_tensordict"


def _lay_out_class(node: Node, options: SaveOptions) -> None:
    inner = as_dense(node.value)
    child = Node(inner, DENSE, (*node.parts, _INNER), node.path)
    DENSE.lay_out(child, options)
    node.children[_INNER] = child
    node.files[META] = values.dump_json({"_type": str(type(node.value))})


def as_dense(value: Any) -> TensorDict:
    """Return a plain tensordict over the very same dictionary of entries."""
    return TensorDict._from_entries(value._entries, value.batch_size, value._device, value._names)


def _load_class(
    loader: Loader, parts: tuple[str, ...], meta: dict[str, Any], batch_size: Any
) -> Any:
    name = loader.source.describe((*parts, META))
    cls = values.find_class(meta["_type"])
    if not loader.source.exists((*parts, _INNER, META)):
        raise missing_file(loader.source.describe((*parts, _INNER, META)))
    inner_meta = read_json(loader.source.read((*parts, _INNER, META)), name)
    inner = DENSE.load(loader, (*parts, _INNER), inner_meta, batch_size)
    return class_of_dense(cls, inner)


def class_of_dense(cls: Any, inner: Any) -> Any:
    """Make a tensorclass that holds the entries of a plain tensordict."""
    return cls._from_entries(inner._entries, inner.batch_size, inner._device, inner._names)


TENSORCLASS = Kind(
    "",
    lambda value: isinstance(value, TensorCollection) and not isinstance(value, TensorDictBase),
    lambda tag: values.find_class(tag) is not None,
    _lay_out_class,
    _load_class,
    lambda value, children, device: class_of_dense(type(value), children[_INNER]),
    _refuse,
)

# -- lazy stacks: a folder an element, named by its number ------------------------------------

_STACK = "<class 'tensordict._lazy.LazyStackedTensorDict'>"


def _lay_out_stack(node: Node, options: SaveOptions) -> None:
    stack = node.value
    for index, element in enumerate(stack.tensordicts):
        key = str(index)
        node.children[key] = lay_out(element, options, (*node.parts, key), (*node.path, key))
    meta = {
        "_type": _STACK,
        "_format_version": 1,
        "_class": "tensordict:LazyStackedTensorDict",
        "stack_dim": stack.stack_dim,
        "stack_dim_name": stack._dim_name,
        # Ours: a folder that lost its last elements is found out.
        "_count": len(stack.tensordicts),
        "_element_shape": list(stack._first().batch_size),
    }
    node.files[META] = values.dump_json(meta)


def _load_stack(
    loader: Loader, parts: tuple[str, ...], meta: dict[str, Any], batch_size: Any
) -> Any:
    name = loader.source.describe((*parts, META))
    dim, label, count = (meta.get(key) for key in ("stack_dim", "stack_dim_name", "_count"))
    if type(dim) is not int or not (label is None or isinstance(label, str)):
        raise bad_field(name, "the dimension of a stack and its name", [dim, label])
    if count is None:
        count = 0
        while loader.source.exists((*parts, str(count), META)):
            count += 1
    if type(count) is not int or count < 0:
        raise bad_field(name, "the number of elements of a stack", count)
    elements = [loader.load((*parts, str(index))) for index in range(count)]
    shape = None if elements else parse_shape(meta.get("_element_shape", []), name)
    try:
        return LazyStackedTensorDict(
            *elements, stack_dim=dim, stack_dim_name=label, batch_size=shape, device=loader.device
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise bad_field(name, f"elements of one stack ({error})", dim) from error


LAZY = Kind(
    "LazyStackedTensorDict",
    lambda value: isinstance(value, LazyStackedTensorDict),
    lambda tag: tag in ("tensordict:LazyStackedTensorDict", _STACK),
    _lay_out_stack,
    _load_stack,
    lambda value, children, device: value._like(children.values()),
    _refuse,
)


for _kind in (DENSE, VALUE, METADATA, VALUES, TENSORCLASS, LAZY):
    register(_kind)
