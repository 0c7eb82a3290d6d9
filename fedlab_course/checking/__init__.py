"""The machinery that checks answers to exercises and replies in words."""
