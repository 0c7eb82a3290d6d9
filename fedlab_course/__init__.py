"""The course built on `fedlab_support`: chapters, exercises and their tools."""
