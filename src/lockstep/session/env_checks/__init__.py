"""Checks that an environment does what training expects; each fault is one line that names the method."""
