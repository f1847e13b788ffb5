"""Readers and writers of GGUF files.

Reading: `paths` finds a model's files, `file` checks one (`header`, `metadata`, `tensor_types`);
`vocabulary` rebuilds its tokenizer (`pre_tokenizers`, `token_types`) and `assets` its template and
settings; `hf_config` translates its keys to config.json (`architectures`, `architecture_fields`,
`rope_scaling`, `folded_hadamard`); `weight_source` hands its tensors to models as a Hugging Face
checkpoint would have them (`tensor_names`, `value_heads`), packed from ggml's `blocks` or BitNet's
`i2_s`. Writing, for `sterna.convert`: `block_encoding`, `metadata_writer` and `hashes`.
"""
