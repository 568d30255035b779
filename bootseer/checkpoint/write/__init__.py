"""Write a striped file: drafts, stripes, spilled units."""
