"""Names: rows of a comparison, methods and policies as text, user-defined code, and hints for a wrong name.

The named objects are defined elsewhere. Nothing here loads data, builds a network or trains.
"""
