"""How fast, how exact and how big: regard beside its peers, measured in one process, in turns."""
