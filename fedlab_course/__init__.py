"""What makes the package a course: exercises, figures, comparisons, and commands."""
