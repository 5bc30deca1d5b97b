"""Where data sets come from: downloads, archives, folders of image files, and the cache of decoded images."""
