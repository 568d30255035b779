"""The race: the same job started as today, by the best of today's tools, and with BootSeer."""
