"""Typed messages between the processes of a job's agent."""
