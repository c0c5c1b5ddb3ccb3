"""The pages, a file each: what a comparison, a search for settings and a diagnosis show."""
