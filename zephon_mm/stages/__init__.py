"""Stateless stages: measuring samples before packing, making pixels after it."""
