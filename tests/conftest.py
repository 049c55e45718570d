"""Shared by all tests. Its place puts this folder on the import path: `worlds` can be imported from anywhere."""
