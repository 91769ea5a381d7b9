"""What the program says about itself: pages of commands and topics, drawn in a terminal or printed as a manual."""
