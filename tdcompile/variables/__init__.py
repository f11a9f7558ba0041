"""Trackers: how Dynamo models tensordicts. Nothing here runs or registers at import."""
