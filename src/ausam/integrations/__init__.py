"""Adapters for frameworks that own the training loop. Import each by name, with its framework installed."""
