"""Whether an environment does what training expects of it: each fault in one line that names the method."""
