"""The objects that are stored, and the log of their changes.

store      versioned objects, and the log of their changes
selectors  label and field selectors
gc         deletes what an owner, a namespace or a definition left behind
"""
