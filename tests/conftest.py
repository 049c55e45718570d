"""Shared by all tests. Its place puts this folder on the import path: `worlds` can be imported from anywhere.

No example is held to a time: on a busy machine any of them can take long.
"""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
