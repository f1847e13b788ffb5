"""GGUF files: all that reads and writes them.

Reading: `file` checks a file (`header`, `metadata`, `tensor_types`); `vocabulary` rebuilds its
tokenizer (`pre_tokenizers`, `token_types`); `hf_config` writes its keys as config.json
(`architectures`, `rope_scaling`, `folded_hadamard`); `weight_source` hands its tensors to models in
the form of a Hugging Face checkpoint, packed from ggml's `blocks`. Writing: `block_encoding` and
`metadata_writer`, which `sterna.convert` uses.
"""
