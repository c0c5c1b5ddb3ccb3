"""Atomic files, and locks between processes.

Nothing here depends on runs, data sets or results.
"""
