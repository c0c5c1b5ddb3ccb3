"""The paper's networks and their small siblings, by name, and quantisation.

Of a problem they know the shape of its answers and nothing else; nothing here trains or touches a file.
"""
