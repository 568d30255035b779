"""The site that `make docs` builds, and what tests compare its pages with."""
