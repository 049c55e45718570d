"""Authentication and authorization.

identities     bearer tokens and kubeconfig files
authorization  the rights of a user, by the roles in the store
kinds          roles and their bindings, and the kinds of access reviews
default_roles  the roles of a new cluster
reviews        kinds that answer a question and store nothing
"""
