"""The generated parts of the site."""
