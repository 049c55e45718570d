"""llama.cpp with its CUDA backend, as node-llama-cpp packs it: a small random model with all layers on the card.

    llama_cpp.py NODE_MODULES

NODE_MODULES is a folder where `npm ci` installed node-llama-cpp.
"""

import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

WIDTH, HEADS, LAYERS, INNER, CONTEXT = 64, 4, 2, 128, 128
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
UNKNOWN, CONTROL, BYTE = 2, 3, 6
UINT32, FLOAT32, STRING, ARRAY, INT32 = 4, 6, 8, 9, 5
F32, F16 = 0, 1
ALIGNMENT = 32


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key: str, kind: int, value: object) -> bytes:
    """Return a key with its value, in GGUF's form."""
    head = string(key)
    if kind == STRING:
        return head + struct.pack("<I", STRING) + string(str(value))
    if isinstance(value, list):
        form = {INT32: "<i", FLOAT32: "<f"}.get(kind)
        items = b"".join(string(each) if form is None else struct.pack(form, each) for each in value)
        return head + struct.pack("<IIQ", ARRAY, STRING if form is None else kind, len(value)) + items
    return head + struct.pack("<I" + {UINT32: "I", FLOAT32: "f"}[kind], kind, value)


def write_model(path: Path) -> None:
    """Write a Llama with random weights."""
    random = np.random.default_rng(1)
    tensors: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        tensors[f"{name}.weight"] = (random.standard_normal((rows, columns)) / 8).astype(np.float16)

    def ones(name: str) -> None:
        tensors[f"{name}.weight"] = np.ones(WIDTH, np.float32)

    matrix("token_embd", len(TOKENS), WIDTH)
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        ones(f"{at}.attn_norm")
        ones(f"{at}.ffn_norm")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"{at}.{name}", WIDTH, WIDTH)
        matrix(f"{at}.ffn_gate", INNER, WIDTH)
        matrix(f"{at}.ffn_up", INNER, WIDTH)
        matrix(f"{at}.ffn_down", WIDTH, INNER)
    ones("output_norm")
    matrix("output", len(TOKENS), WIDTH)
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    entries = [
        entry("general.architecture", STRING, "llama"),
        entry("general.name", STRING, "random"),
        entry("llama.context_length", UINT32, CONTEXT),
        entry("llama.embedding_length", UINT32, WIDTH),
        entry("llama.block_count", UINT32, LAYERS),
        entry("llama.feed_forward_length", UINT32, INNER),
        entry("llama.attention.head_count", UINT32, HEADS),
        entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        entry("llama.rope.dimension_count", UINT32, WIDTH // HEADS),
        entry("tokenizer.ggml.model", STRING, "llama"),
        entry("tokenizer.ggml.tokens", ARRAY, TOKENS),
        entry("tokenizer.ggml.scores", FLOAT32, [0.0] * len(TOKENS)),
        entry("tokenizer.ggml.token_type", INT32, kinds),
        entry("tokenizer.ggml.bos_token_id", UINT32, 1),
        entry("tokenizer.ggml.eos_token_id", UINT32, 2),
    ]
    infos, data = b"", b""
    for name, tensor in tensors.items():
        data += bytes(-len(data) % ALIGNMENT)
        shape = tensor.shape[::-1]
        kind = F16 if tensor.dtype == np.float16 else F32
        infos += (
            string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", kind, len(data))
        )
        data += tensor.tobytes()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries) + infos
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)


with tempfile.TemporaryDirectory() as folder:
    model = Path(folder, "random.gguf")
    write_model(model)
    command = ["node", str(Path(__file__).with_name("llama_cpp.mjs")), sys.argv[1], str(model)]
    sys.exit(subprocess.run(command, check=False).returncode)
