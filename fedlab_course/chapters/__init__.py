"""What only one chapter needs, such as the checks of its exercises."""
