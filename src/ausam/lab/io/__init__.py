"""Files that are whole or not there, and locks between processes.

Nothing here knows what a run, a data set or a result is.
"""
