"""One file per data set: where it comes from and how its files are read.

What several of them share (downloading, images in memory, labels) is one folder up.
"""
