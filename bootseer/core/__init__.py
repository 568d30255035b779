"""Pure data and planning: no I/O, no clock, no process state."""
