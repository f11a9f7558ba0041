"""Tensordicts between processes: ``torch.distributed``, worker processes, data loaders."""
