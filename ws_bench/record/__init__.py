"""What a run leaves behind: samples, statistics, gates, the files it is stored in."""
