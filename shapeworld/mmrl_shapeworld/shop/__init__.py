"""A toy shop in text: look through its shelves, take the wanted thing, and pay, over several turns."""
