"""What programs expect of a directory, by what they do; `posix_suite` holds folders against it."""
