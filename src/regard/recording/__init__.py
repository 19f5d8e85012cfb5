"""What a model attended to: recorded, proved, saved."""
