"""Real data that ships inside a package: nothing is downloaded."""
