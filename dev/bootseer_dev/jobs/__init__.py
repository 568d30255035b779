"""Jobs on a local cluster with BootSeer installed."""
