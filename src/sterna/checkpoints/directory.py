"""A model's folder in the Hugging Face layout: config, weights in one file or in shards."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

from sterna.checkpoints import mistral_layout
from sterna.checkpoints.safetensors import Array, SafetensorsFile, TensorInfo
from sterna.errors import ModelFormatError, RequestError
from sterna.files.bundle_file import (
    MODEL,
    Bundle,
    BundleError,
    read_bundle,
    require_parts,
    unpacked,
)
from sterna.files.jsonfile import MAX_CONFIG_BYTES, json_kind, load_json_object
from sterna.files.reading import unreadable

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

OWN_WEIGHTS = "consolidated.safetensors"  # of Mistral's own layout
ADAPTER = "adapter_config.json"  # as PEFT saves one
MAX_SHARDS = 10_000
_SHARD = re.compile(r".*-\d{5}-of-\d{5}\.safetensors")
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_T = TypeVar("_T")


class Checkpoint:
    """A model's folder, opened and checked; tensors are read one by one on request.

    `path`; `config`: what config.json says; `tensors`: name -> TensorInfo over all shards.
    """

    def __init__(
        self, path: Path, config: dict[str, Any], files: Iterable[SafetensorsFile]
    ) -> None:
        """Join the files that `open` has read; ModelFormatError if two hold the same tensor."""
        self.path = path
        self.config = config
        self.tensors: dict[str, TensorInfo] = {}
        self._stored: dict[str, str] = {}  # renamed tensors -> their names in the files
        self._files: dict[Path, SafetensorsFile] = {}
        for file in files:
            self._files[file.path] = file
            for name, info in file.tensors.items():
                if name in self.tensors:
                    got = f"it also in {self.tensors[name].file.name}"
                    raise ModelFormatError(file.path, name, "each tensor in one file", got)
                self.tensors[name] = info

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Open a folder with config.json and safetensors weights; reads headers, no weights.

        path: may be a bundle's, whose weights are read in place. Raises RequestError if there is no
        such folder or it cannot be read, ModelFormatError if its files break a rule or hold pickled
        weights only.
        """
        bundle = bundle_at(path)
        if bundle is not None:
            folder = _of_bundle(unpacked, bundle, MODEL)
            config = load_json_object(folder / CONFIG, MAX_CONFIG_BYTES)
            return cls(folder, config, [SafetensorsFile(bundle.path, *bundle.weights)])
        folder = require_folder(path)
        if not (folder / CONFIG).exists():
            files = [SafetensorsFile(folder / OWN_WEIGHTS)]
            own = _MistralCheckpoint(folder, mistral_layout.config_of(folder), files)
            return own.renamed(mistral_layout.name_of)
        config = load_json_object(folder / CONFIG, MAX_CONFIG_BYTES)
        return cls(folder, config, _open_weights(folder))

    def renamed(self, name_of: Callable[[str], str]) -> Checkpoint:
        """Return the same files with other names of tensors.

        Errors name a tensor as its file does. ModelFormatError if two tensors get the same name.
        """
        other = copy(self)
        other.tensors, other._stored = {}, {}
        for before, info in self.tensors.items():
            name, stored = name_of(before), self._stored.get(before, before)
            if name in other.tensors:
                got = f"it also as {other._stored.get(name, name)}"
                raise ModelFormatError(info.file, stored, "each tensor once", got)
            other.tensors[name] = info._replace(name=name)
            other._stored |= {name: stored} if name != stored else {}
        return other

    def joined(self, file: SafetensorsFile, module: str, name: str) -> Checkpoint:
        """Return the same with the tensors of another file, whose `module` gets a new name."""
        other = copy(self)
        named = {stored.replace(module, name, 1): stored for stored in file.tensors}
        infos = {name: file.tensors[stored]._replace(name=name) for name, stored in named.items()}
        other.tensors, other._stored = self.tensors | infos, self._stored | named
        other._files = self._files | {file.path: file}
        return other

    @property
    def is_packed(self) -> bool:
        """Whether this is a packed directory of Sterna's own (`packed.read_packed`)."""
        quantization = self.config.get("quantization_config")
        return isinstance(quantization, dict) and quantization.get("quant_method") == "sterna"

    @property
    def files(self) -> list[SafetensorsFile]:
        """The weight files, in the order of their first tensors."""
        return list(self._files.values())

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of all weight files together; a later shard's entry wins."""
        return {k: v for file in self._files.values() for k, v in file.metadata.items()}

    def info(self, name: str) -> TensorInfo:
        """Where the tensor lies, its dtype and shape; ModelFormatError if there is none."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelFormatError(self._where(), name, "a tensor", "none of this name")
        return info

    def require(
        self,
        name: str,
        shape: Iterable[int] | None = None,
        dtype: str | Collection[str] | None = None,
    ) -> TensorInfo:
        """Return `info`; the shape and dtype (one, or any of several) must be these.

        Raises ModelFormatError naming file, tensor, expected and got.
        """
        dtypes = (dtype,) if isinstance(dtype, str) else dtype
        wanted = None if shape is None else tuple(shape)
        info = self.tensors.get(name)
        fits = info is not None and (wanted is None or info.shape == wanted)
        if info is not None and fits and (dtypes is None or info.dtype in dtypes):
            return info
        expected = [] if dtypes is None else [" or ".join(dtypes)]
        expected += [] if wanted is None else [f"shape {list(wanted)}"]
        raise ModelFormatError(
            self._where() if info is None else info.file,
            self._stored.get(name, name),
            " ".join(expected) or "a tensor",
            "no such tensor" if info is None else f"{info.dtype} shape {list(info.shape)}",
            remedy="the weights do not match config.json: check both files",
        )

    def read(self, name: str, out: Array | None = None) -> Array:
        """Read a tensor into fresh memory or `out`; BF16 comes back as uint16."""
        info = self.info(name)
        return self._files[info.file].read(self._stored.get(name, name), out)

    def _where(self) -> Path:
        return next(iter(self._files)) if len(self._files) == 1 else self.path


def bundle_at(path: str | os.PathLike[str]) -> Bundle | None:
    """Read the header of a bundle, None for what is none; ModelFormatError for a damaged one."""
    return _of_bundle(read_bundle, path) if os.path.isfile(path) else None


def check_bundle(path: Path) -> None:
    """Raise ModelFormatError if `path` is a bundle whose parts are not as its header says."""
    bundle = bundle_at(path)
    if bundle is not None:
        _of_bundle(require_parts, bundle)


def _of_bundle(read: Callable[..., _T], *arguments: Any) -> _T:
    try:
        return read(*arguments)
    except BundleError as error:
        raise ModelFormatError(
            file=error.path, expected=error.expected, got=error.got, remedy=error.remedy
        ) from error


class _MistralCheckpoint(Checkpoint):
    """A folder in Mistral's own layout, read as one in that of Hugging Face."""

    def read(self, name: str, out: Array | None = None) -> Array:
        """Read a tensor; rows of q and k come in the order of rotations of halves."""
        array = super().read(name, out)
        if mistral_layout.rotates(name) and array.ndim == 2:
            width = self.config["head_dim"]
            if type(width) is not int or width < 2 or width % 2 or len(array) % width:
                rule = f"an even divisor of {len(array)}, the rows of {name}"
                raise ModelFormatError(self.path / mistral_layout.PARAMS, "head_dim", rule, width)
            pairs = array.reshape(-1, width // 2, 2, array.shape[1])
            array[...] = pairs.swapaxes(1, 2).reshape(array.shape)
        return array


def require_folder(path: str | os.PathLike[str]) -> Path:
    """Return the path of an existing folder; RequestError if it is missing or no folder."""
    if not os.fspath(path):  # Path("") would be the current folder
        raise RequestError("model: must be a folder, but got an empty path; pass its path")
    folder = Path(path)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        raise RequestError(
            f"{folder}: must be a model's folder, but got a path that does not exist; "
            "check the spelling"
        ) from None
    except NotADirectoryError:
        raise RequestError(
            f"{folder}: must be a model's folder, but got a file; "
            f"pass the folder that holds {CONFIG} and {WEIGHTS}"
        ) from None
    except (OSError, ValueError) as error:
        raise unreadable(folder, error) from error
    if CONFIG not in names and not {mistral_layout.PARAMS, OWN_WEIGHTS} <= {*names}:
        got, remedy = _other_folder(folder, names)
        raise ModelFormatError(
            folder, expected=f"a model's folder with {CONFIG}", got=got, remedy=remedy
        )
    return folder


def _other_folder(folder: Path, names: Collection[str]) -> tuple[str, str]:
    """Return what a folder without a config.json is, and what to do about it."""
    if ADAPTER in names:
        remedy = "open the model that it was trained for, and pass this folder as its adapter"
        return "an adapter's folder", f"{remedy} (adapters, --adapter)"
    if "snapshots" in names:
        here = sorted((folder / "snapshots").glob(f"*/{CONFIG}"))
        if here:
            return "a folder of the Hub's cache", f"pass {here[0].parent}"
    if mistral_layout.PARAMS in names:
        return "files in Mistral's own layout", f"download {OWN_WEIGHTS}, too"
    return "none in it", "pass the folder that holds the model's files"


def _open_weights(folder: Path) -> list[SafetensorsFile]:
    names = set(os.listdir(folder))
    if WEIGHTS in names:  # as transformers: the single file wins over an index
        return [SafetensorsFile(folder / WEIGHTS)]
    if INDEX in names:
        return _open_shards(folder / INDEX)
    expected = f"{WEIGHTS} or {INDEX}"
    pickled = sorted(name for name in names if name.endswith(PICKLED))
    if pickled:
        raise ModelFormatError(
            folder,
            expected=expected,
            got=f"only pickled weights ({pickled[0]})",
            remedy="unpickling can run any code, so it is not supported: convert to safetensors",
        )
    other = sorted(name for name in names if name.endswith((".safetensors", ".gguf")))
    remedy = "download the model's safetensors weights into this folder"
    if any(_SHARD.fullmatch(name) for name in other):
        remedy = f"download {INDEX} too, which lists all shards"
    raise ModelFormatError(
        folder, expected=expected, got=other[0] if other else "no weights", remedy=remedy
    )


def weight_map(index: Path) -> dict[str, str]:
    """Read tensor -> shard from an index file: at most MAX_SHARDS plain names in the same folder.

    Raises ModelFormatError.
    """
    shards = load_json_object(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        got = "an empty one" if shards == {} else json_kind(shards)
        raise ModelFormatError(index, "weight_map", "an object of tensor names", got)
    for tensor, shard in shards.items():
        if not _is_plain_name(shard):
            raise ModelFormatError(
                index,
                tensor,
                "the name of a .safetensors file in this folder",
                shard if isinstance(shard, str) else json_kind(shard),
            )
    if len(set(shards.values())) > MAX_SHARDS:
        raise ModelFormatError(index, "weight_map", f"at most {MAX_SHARDS} files")
    return shards


def _open_shards(index: Path) -> list[SafetensorsFile]:
    shards: dict[str, SafetensorsFile] = {}
    for tensor, shard in weight_map(index).items():
        if shard not in shards:
            shards[shard] = SafetensorsFile(index.parent / shard)
        if tensor not in shards[shard].tensors:
            raise ModelFormatError(
                index.parent / shard, tensor, f"this tensor, as {INDEX} says", "none of this name"
            )
    return list(shards.values())


def _is_plain_name(shard: object) -> bool:
    # No separators, so that an index cannot reach out of its folder
    return (
        isinstance(shard, str)
        and shard.endswith(".safetensors")
        and shard.isprintable()
        and not any(c in shard for c in "/\\:")
    )
