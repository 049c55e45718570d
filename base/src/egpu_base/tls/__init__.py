"""Certificates.

certificates  issue, check and renew certificates of webhook and extender
followed      a certificate in files, reloaded when it changes
"""
