"""Starting programs inside a slice.

enter             starts `egpu-enter`: a command inside a slice
preloading        checks that the loader will preload a library
"""
