"""Entries that are no batched tensors: values, stacks of values, tensors without a batch."""
