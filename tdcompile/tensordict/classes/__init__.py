"""Tensordicts with declared fields: tensorclasses, typed ones, the schema that they share."""
