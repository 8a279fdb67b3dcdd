"""Engines that place ranks on a cluster. `ray/`: one Ray actor per rank."""
