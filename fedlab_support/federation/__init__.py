"""Clients, how data is dealt to them, who is held out, who is selected."""
