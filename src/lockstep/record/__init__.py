"""What a run leaves behind: its directory, metrics, summary and the line on the terminal."""
