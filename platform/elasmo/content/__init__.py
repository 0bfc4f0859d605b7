"""What a picture, a recording or a text tells of itself: hashes that find near ones, languages, patterns, sketches."""
