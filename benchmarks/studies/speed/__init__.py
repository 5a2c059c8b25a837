"""How long things take, against what they could take."""
