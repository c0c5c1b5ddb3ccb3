"""What belongs to the AUSAM paper alone: its tables, networks, poses, quantisation and benchmark."""
