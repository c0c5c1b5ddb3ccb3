"""From names to things: the paper's pairs, methods and policies as text, the user's own code, help for a wrong name.

What the names stand for lives elsewhere; nothing here loads data, builds a network or trains.
"""
