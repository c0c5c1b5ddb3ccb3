"""The pages, a file each: what a comparison, an audit, a search for settings and a diagnosis show."""
