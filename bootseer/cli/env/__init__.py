"""bootseer env: installed environments, captured once and restored everywhere."""
