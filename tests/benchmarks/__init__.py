"""Questions of speed, answered side by side; not collected by pytest."""
