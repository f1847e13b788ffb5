"""How the converter of bitnet.cpp packs for TL2, with an order of its own in each tile.

For test_bitnet_lookup.py. Like the converter it imports what is not there.
"""

import numpy as np
import packages_of_the_converter  # type: ignore[import-not-found]  # absent, as it is from the peer

__all__ = ["packages_of_the_converter", "preprocess_weights_tl2"]


def nibbles_tl2(codes):
    codes = codes.astype(np.uint8).reshape(len(codes), -1, 2)
    return (codes[..., 0] | codes[..., 1] << 4).reshape(-1)


def preprocess_weights_tl2(w, bits=2, g=4):
    """Codes of three weights, their signs, and codes of two, each row by row."""
    from configparser import ConfigParser

    config = ConfigParser()
    config.read("include/kernel_config.ini")
    (kernel,) = (
        config[name]
        for name in config.sections()
        if (config.getint(name, "m"), config.getint(name, "k")) == w.shape
    )
    three = w.shape[1] // kernel.getint("bk") * kernel.getint("bk")
    sums = w[:, :three].reshape(len(w), -1, 3) @ np.array([9, 3, 1])
    pairs = w[:, three:].reshape(len(w), -1, 2) @ np.array([3, 1]) + 4
    signs = np.packbits(sums < 0, axis=1, bitorder="little").reshape(-1)
    packed = [nibbles_tl2(abs(sums)), signs, nibbles_tl2(pairs)]
    return np.concatenate([*packed, np.zeros(32, np.uint8)])
