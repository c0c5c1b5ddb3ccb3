"""Pose estimation: crops, targets, the SimCC task and its score.

The data sets are in ``sources``, the networks in ``networks``.
"""
