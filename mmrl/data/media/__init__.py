"""Images and videos of samples: decoding, budgets, conditions, data URIs, and a cache of prepared media.

reader        `MediaReader`, through which policies read media; `MediaCache`, of media prepared by `mmrl data prepare`
budget        number of frames and pixels, and the resulting sizes
decode        complete decoding of images and videos, with errors that name file and sample
video         sampled frames of a video, by decord or PyAV
bad_media     search for media that cannot be decoded
sample_media  conditions of generators, and answers that are images; `uris`: data URIs
"""
