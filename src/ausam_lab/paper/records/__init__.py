"""The records of a table of the paper and of the benchmark at equal cost."""
