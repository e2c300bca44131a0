"""Images and videos of samples: decoding, budgets, conditions, data URIs, and a cache of prepared media.

reader        `MediaReader`, through which policies read media
budget        number of frames and pixels, and the resulting sizes
decode        complete decoding of images and videos, with errors that name file and sample
video         sampled frames of a video, by decord or PyAV
media_cache   media decoded and resized once by `mmrl data prepare`
bad_media     search for media that cannot be decoded
conditions    media of generators; `answer_media`: answers that are images; `uris`: data URIs
"""
