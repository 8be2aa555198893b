"""Applications: built only from what every user may import."""
