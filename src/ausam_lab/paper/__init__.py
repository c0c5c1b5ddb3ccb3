"""What belongs to the AUSAM paper alone: its tables and their cost, networks, poses and quantisation."""
