"""One module per data set: where it comes from and how its files are read.

Shared code (downloading, images in memory, labels) is one folder up.
"""
