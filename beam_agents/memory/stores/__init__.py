"""memory/stores."""
