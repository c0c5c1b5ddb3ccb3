"""Networks for images by name, in several sizes. ``paper`` adds its own.

They depend on a problem only by the shape of its outputs. Nothing here trains or touches a file.
"""
