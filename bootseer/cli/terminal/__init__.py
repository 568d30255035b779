"""What commands write to a terminal: tables, progress, and an end when it cannot be written."""
