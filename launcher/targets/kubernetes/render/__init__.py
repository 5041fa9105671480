"""A plan as the objects that a cluster gets, and as the text of a manifest."""
