class ConstructMixin:
    __slots__ = ()
