"""Places where jobs run: a room for each, behind one interface; beside them what they share."""
