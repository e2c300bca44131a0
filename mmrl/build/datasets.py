"""The data that a configuration names."""

from __future__ import annotations

import logging

from mmrl.config.media import MediaConfig
from mmrl.data.media.bad_media import without_bad_media
from mmrl.data.media.decode import refuse_unreadable
from mmrl.data.media.media_cache import cache_of
from mmrl.data.sample import Sample
from mmrl.data.sources import load_source
from mmrl.errors import ConfigError
from mmrl_shapeworld import splits

log = logging.getLogger(__name__)


def load_samples(path: str, media: MediaConfig | None = None) -> list[Sample]:
    """A data set, whose pictures and videos must be there, or an embedded split such as `shapeworld:train`.

    With `media.on_error` of `exclude`, everything is decoded, and samples whose media are bad are named and left out.
    """
    if not path.startswith("shapeworld:"):
        found = load_source(path)
        if media is not None and media.on_error == "exclude":
            cache = cache_of(media)
            kept = without_bad_media(found, "exclude", cache.look if cache else None)
            if told := kept.report():
                log.warning("%s: %s", path, told)
            return list(kept.samples)
        refuse_unreadable(found)
        return found
    try:
        return splits.samples(path.removeprefix("shapeworld:"))
    except KeyError as err:
        raise ConfigError(f"data: {err.args[0]}") from err
