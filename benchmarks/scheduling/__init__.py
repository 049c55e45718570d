"""Measurements of scheduling: the tables and plots of docs/internals/scheduling-measured.md."""
