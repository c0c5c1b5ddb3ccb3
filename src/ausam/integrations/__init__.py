"""Adapters for frameworks that own the training loop; import each by name, with its framework installed."""
