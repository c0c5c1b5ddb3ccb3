"""The paper's networks and smaller versions of them, by name, and quantisation.

They depend on a problem only by the shape of its outputs. Nothing here trains or touches a file.
"""
