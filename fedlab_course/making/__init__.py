"""Networks that the project trained itself: scripts that make what lies in assets."""
