"""The terminal itself: what it can show, what is sent to it, and how it is left."""
