"""What the scripts that draw the pictures share."""
