class SelectionMixin:
    __slots__ = ()
