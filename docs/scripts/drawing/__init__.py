"""What the scripts that draw the README share."""
