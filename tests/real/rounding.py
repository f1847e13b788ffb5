"""How much of a real model formats keep: `python tests/real/rounding.py` prints a table.

The models come as GGUF files of few bits; their weights as floats are what is rounded here, to
which `quantize` does the same as to any other float checkpoint.
"""

from __future__ import annotations

import argparse
import collections
import inspect
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import assets
import gguf

from sterna import LLM, formats
from sterna.errors import RequestError
from sterna.evaluate.compare import compare

# From few bits to many; of one size the better first.
FORMATS = (
    "i4", "i4:g128", "i4:g64", "mxfp4", "iq4_xs", "i4:g32", "q4_0", "iq4_nl", "q4_k", "q4_1",
    "q5_k", "q6_k", "i8", "q8_0", "q3_k", "q2_k", "pot4z", "i2p", "t5",
)  # fmt: skip
CONTEXT = 512


def as_floats(source: Path, out: Path) -> Path:
    """A GGUF file of the same model whose matrices are F16; written once."""
    if out.is_file():
        return out
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out.with_suffix(".part"), architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind, *inner = field.types
        writer.add_key_value(name, field.contents(), kind, *inner[-1:])
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype("<f2" if values.ndim > 1 else "<f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    out.with_suffix(".part").rename(out)
    return out


def text(characters: int = 12000) -> str:
    """Docstrings of the standard library: no model was rounded by it, and no file is needed."""
    modules = (argparse, collections, inspect, json)
    parts = [str(module.__doc__) for module in modules]
    parts += [
        str(inspect.getdoc(getattr(module, name)))
        for module in modules
        for name in sorted(module.__all__ if hasattr(module, "__all__") else ())
    ]
    return "\n\n".join(parts)[:characters]


def figures(source: Path, names: list[str], sample: str) -> Iterator[dict[str, object]]:
    """Rows of a format, its perplexity on the sample and the mean KL from the floats."""
    floats = LLM(source, format="f16", cache=False)
    for name in names:
        try:
            rounded = LLM(source, format=name, cache=False)
        except RequestError as error:
            yield {"format": name, "refused": str(error)}
            continue
        found = compare(floats, rounded, [sample], context=CONTEXT, stride=CONTEXT)
        if name == names[0]:
            yield {"format": "f16", "bits": 16.0, "perplexity": found.a.perplexity, "kl": 0.0}
        yield {
            "format": name,
            "bits": formats.get(name).bits,
            "perplexity": found.b.perplexity,
            "kl": found.kl_figures()["mean"],
        }


def main() -> None:
    """A line of JSON for each model and format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--models", default="smollm2,gemma3")
    parser.add_argument("--characters", type=int, default=12000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models.split(","):
            source = as_floats(getattr(assets, model)(), Path(folder) / f"{model}.gguf")
            for row in figures(source, options.formats.split(","), text(options.characters)):
                print(json.dumps({"model": model, **row}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
