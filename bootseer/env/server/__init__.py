"""The store side of `env run`: find a snapshot and restore it, or capture one."""
