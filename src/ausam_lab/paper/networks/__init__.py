"""The networks of the paper's tables."""
