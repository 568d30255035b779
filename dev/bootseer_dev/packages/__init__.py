"""Packages of BootSeer for Debian and for systems with RPM: what is in them, how they are built."""
