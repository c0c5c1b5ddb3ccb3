"""What every folder uses: vectors of tensors, random numbers, checked settings, ranks."""
