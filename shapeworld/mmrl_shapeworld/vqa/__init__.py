"""ShapeWorld to look at: pictures and clips with questions whose answers are known, one kind for each task of a VLM."""
