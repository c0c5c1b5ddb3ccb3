"""Finding the joints of people: crops, targets, the SimCC task and its score.

Data sets of people are in ``sources``; networks for them in ``networks``.
"""
