"""Pose estimation: people and their crops, the SimCC task with its score, MPII, and drawn stick figures."""
