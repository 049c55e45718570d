// Load a model with all layers on the card, read a prompt and write some tokens. One JSON line for each step.
import { pathToFileURL } from "node:url";
import { join } from "node:path";

const [modules, model_path] = process.argv.slice(2);
const at = pathToFileURL(join(modules, "node-llama-cpp", "dist", "index.js"));
const { getLlama } = await import(at);
let llama, model, context, sequence;

async function step(name, work) {
    console.log(JSON.stringify({ begins: name }));
    try {
        await work();
        console.log(JSON.stringify({ step: name, ok: true }));
    } catch (error) {
        console.log(JSON.stringify({ step: name, ok: false, error: String(error).split("\n")[0] }));
    }
}

await step("backend", async () => {
    llama = await getLlama({ gpu: "cuda", build: "never", progressLogs: false, vramPadding: 0 });
    if (llama.gpu !== "cuda") throw new Error(`it runs on ${llama.gpu}`);
    const names = await llama.getGpuDeviceNames();
    if (names.length !== 1 || !names[0].includes("A100")) throw new Error(`devices: ${names}`);
});
await step("model", async () => { model = await llama.loadModel({ modelPath: model_path, gpuLayers: "max" }); });
await step("context", async () => {
    context = await model.createContext({ contextSize: 128, batchSize: 64, flashAttention: false });
    sequence = context.getSequence();
});
await step("prompt", async () => { await sequence.evaluateWithoutGeneratingNewTokens(model.tokenize("a prompt of some words")); });
await step("tokens", async () => {
    let count = 0;
    for await (const token of sequence.evaluate(model.tokenize(" more"), { temperature: 0 })) if (++count >= 8) break;
});
await step("flash attention", async () => {
    const other = await model.createContext({ contextSize: 128, batchSize: 64, flashAttention: true });
    await other.getSequence().evaluateWithoutGeneratingNewTokens(model.tokenize("a prompt of some words"));
    await other.dispose();
});
await step("end", async () => { await context.dispose(); await model.dispose(); await llama.dispose(); });
process.exit(0);
