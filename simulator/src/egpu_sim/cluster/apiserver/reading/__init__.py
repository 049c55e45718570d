"""Reads: get, list and watch, as objects or as the tables that kubectl prints.

reads             get and list
watch             changes as they happen
table             columns of `kubectl get`
workload_columns  the columns of the kinds whose controllers make pods
jsonpath          paths of a CRD's columns
absent            empty lists of kinds that kubectl asks for and this server does not have
"""
