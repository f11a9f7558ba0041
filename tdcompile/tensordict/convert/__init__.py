"""Tensordicts from and to other forms, padded, grouped and compared."""
