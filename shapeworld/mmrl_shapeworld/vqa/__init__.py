"""Visual question answering on ShapeWorld: pictures and clips with questions and true answers, for each VLM task."""
