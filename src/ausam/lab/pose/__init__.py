"""Human pose: people in pictures, the joints of each, and how a network that finds them is trained and judged."""
