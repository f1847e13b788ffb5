"""OpenAI's Batch API: files of requests, answered in idle time.

job       `Batch`: the status of one batch
input     the requests of an input file, checked
journal   results on disk as they come, so that a restart computes none twice
runner    `BatchRunner`: runs the batches of all keys
"""
