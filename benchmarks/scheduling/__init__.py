"""Scheduling, measured: the tables and plots of docs/scheduling.md."""
