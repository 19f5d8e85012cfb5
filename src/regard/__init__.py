"""See what any transformer attends to: exactly, at any length, at full speed."""
