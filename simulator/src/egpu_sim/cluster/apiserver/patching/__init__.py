"""PATCH, in its four formats.

dispatch    from the content type to the change
json_patch  JSON Patch and JSON Merge Patch
strategic   strategic merge patch
applying    the body of a server-side apply
ownership   which manager set which field; server-side apply
fieldsets   sets of fields
"""
