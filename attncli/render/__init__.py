"""Views: values in, Rich renderables out. Nothing here prints, and nothing here knows a source."""
