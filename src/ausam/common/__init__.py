"""What every room uses: vectors of tensors, random numbers, checked settings, ranks."""
