"""Load the samples that `data.path` names."""

from __future__ import annotations

import logging

from mmrl.build.schemes import provided_samples
from mmrl.config.media import MediaConfig
from mmrl.data.media.bad_media import check_media_files, exclude_bad_media
from mmrl.data.media.reader import cache_of
from mmrl.data.sample import Sample
from mmrl.data.sources import load_source

log = logging.getLogger(__name__)


def load_samples(path: str, media: MediaConfig | None = None) -> list[Sample]:
    """Load a data set, or a split that an installed package provides, such as `shapeworld:train`.

    With `media.on_error` of `exclude`, every medium is decoded, and samples with undecodable media are logged and left
    out. Otherwise the files of all media must exist.

    Raises:
        ConfigError: No package provides the split.
        DataError: A sample or one of its media cannot be read.
    """
    if (provided := provided_samples(path)) is not None:
        return provided
    found = load_source(path)
    if media is not None and media.on_error == "exclude":
        cache = cache_of(media)
        kept = exclude_bad_media(found, cache.check if cache else None)
        if report := kept.report():
            log.warning("%s: %s", path, report)
        return list(kept.samples)
    check_media_files(found)
    return found
