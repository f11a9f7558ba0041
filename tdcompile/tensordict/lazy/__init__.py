"""Lazy stacks: tensordicts kept apart that read as one.

``stack.py`` has the class, the other files its parts; compiled frames call ``rebuild.py``.
"""
