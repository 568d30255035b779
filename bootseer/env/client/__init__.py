"""The client of `env run`. Standard library only, Python 3.8 or later: it runs in containers."""
