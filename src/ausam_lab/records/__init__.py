"""Atomic files, locks between processes, and the records of runs and comparisons.

Nothing here trains, or depends on a data set.
"""
