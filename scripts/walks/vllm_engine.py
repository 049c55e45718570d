"""vLLM's engine with a small model of random weights: its start, with the memory of its cache, and a few tokens."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import steps

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # its buffers are host memory that the card reads, which a pool over TCP refuses
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it is compiled when it is first used, by a whole toolkit
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 4, "vocab_size": 1000,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "torch_dtype": "float16",
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
TOKENS = 4
engines: list[Any] = []


def load() -> None:
    import vllm

    assert vllm.__version__


def start() -> None:
    import vllm

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        engines.append(
            vllm.LLM(
                folder, load_format="dummy", skip_tokenizer_init=True, max_model_len=256, max_num_seqs=8,
                gpu_memory_utilization=0.5, enforce_eager=True,
            )
        )  # fmt: skip


def generate() -> None:
    import vllm

    (engine,) = engines
    wanted = vllm.SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0.0, detokenize=False)
    prompts = [{"prompt_token_ids": [3 + (at + many) % 900 for at in range(32)]} for many in range(3)]
    made = [len(each.outputs[0].token_ids) for each in engine.generate(prompts, wanted)]
    if made != [TOKENS] * len(prompts):
        raise RuntimeError(f"{made} tokens")


if __name__ == "__main__":
    all(steps.step(name, work) for name, work in (("import", load), ("engine", start), ("tokens", generate)))
