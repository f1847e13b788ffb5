"""Limits of the sandbox in which templates run."""

MAX_CHARS = 4 << 20  # characters of the output or of one value; an item of a list counts as 8
MAX_SOURCE_CHARS = 128 << 10  # the largest public templates have about 30 thousand
MAX_CREATED = 64 << 20  # bytes of all values of a rendering, since all of them may be alive at once
MAX_PRODUCT = 4 * MAX_CHARS  # product of a call's argument sizes, if the result can grow with it
MAX_WORK = 16 * MAX_CHARS  # the same product, if only the time can grow with it
MAX_STEPS = 1_000_000
MAX_SECONDS = 2.0  # CPU time of the thread, so that a busy machine fails no template
MAX_DEPTH = 64  # nested calls of macros and recursive loops
MAX_LOOPS = 16  # nested loops; Python's own limit is 20
MAX_TOKENS = 24_000  # tokens of a template; the largest public ones have about 8 thousand
MAX_NODES = 20_000  # nodes of a template's syntax tree
MAX_SCOPES = 200_000  # branches x assignments: the compiler copies every name for each branch
MAX_ARGUMENTS = 256  # arguments of a call: each level of a recursion keeps several copies
MAX_ITERATED = 1 << 16  # characters of a text taken apart: each becomes a value of its own
MAX_PIECES = 1 << 19  # pieces that a text is split into
MAX_INT_BITS = 4096
MAX_INT_ARGUMENT = 100_000  # 10**precision in `round`, a base, a width
