"""The command side of `env run`. Standard library only, Python 3.8: it runs in containers."""
