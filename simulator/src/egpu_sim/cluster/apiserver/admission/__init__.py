"""Admission: the checks and changes of a write before it is stored.

webhooks        calls admission webhooks and merges their answers
webhook_client  posts reviews to webhooks
policies        ValidatingAdmissionPolicies
type_checking   warns of fields that a policy reads and a kind does not have
matching        the writes that a policy or a webhook matches
expressions     variables of their expressions
priority        priority classes
quota           resource quotas
"""
