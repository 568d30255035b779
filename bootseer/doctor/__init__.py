"""Check that a machine is ready for BootSeer: a submit host or a compute node.

`runner` runs the checks of the other modules, each of which has one subject.
"""
