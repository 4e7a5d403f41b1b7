// Sends requests through clients of npm, each as its maker ships it: nothing here looks at an answer's fields.
//
//   node field.mjs URL REQUESTS CLIENTS PATHS CALLER
//
// CLIENTS and PATHS are lists with commas. Each client sends REQUESTS requests to each path, one after the other, as the
// caller CLIENT-CALLER. A line for each client and path has the statuses that the client got in the end.

import Anthropic from "@anthropic-ai/sdk";
import { REST } from "@discordjs/rest";
import { Octokit } from "@octokit/core";
import { throttling } from "@octokit/plugin-throttling";
import axios from "axios";
import axiosRetry from "axios-retry";
import got from "got";
import ky from "ky";
import OpenAI from "openai";

const [url, requests, clients, paths, caller] = process.argv.slice(2);
const retries = 5;

// Each makes a function that sends one request and returns its status, or throws an error with a status.
const makers = {
  got(base, headers) {
    return async () => (await got(base, { headers })).statusCode;
  },
  ky(base, headers) {
    return async () => (await ky(base, { headers })).status;
  },
  "axios-retry"(base, headers) {
    const api = axios.create({ headers });
    axiosRetry(api);
    return async () => (await api.get(base)).status;
  },
  octokit(base, headers) {
    const again = (_wait, _options, _octokit, count) => count < retries;
    const api = new (Octokit.plugin(throttling))({
      baseUrl: base,
      throttle: { id: base + headers["x-caller"], onRateLimit: again, onSecondaryRateLimit: again },
      log: { debug() {}, info() {}, warn() {}, error() {} },
    });
    return async () => (await api.request("GET /things", { headers })).status;
  },
  "discordjs-rest"(base, headers) {
    const api = new REST({ api: base, version: "1" });
    return async () => {
      await api.get("/things", { auth: false, headers });
      return 200;
    };
  },
  openai(base, headers) {
    const api = new OpenAI({ baseURL: base, apiKey: "key", defaultHeaders: headers });
    return async () => (await api.models.list().asResponse()).status;
  },
  anthropic(base, headers) {
    const api = new Anthropic({ baseURL: base, apiKey: "key", defaultHeaders: headers });
    return async () => (await api.models.list().asResponse()).status;
  },
};

async function run(client, path) {
  const send = makers[client](url + path, { "x-caller": `${client}-${caller}` });
  const got = [];
  for (let i = 0; i < Number(requests); i++) {
    try {
      got.push(await send());
    } catch (error) {
      got.push(error.status ?? error.response?.statusCode ?? error.response?.status ?? String(error));
    }
  }
  console.log(client, path, ...got);
}

await Promise.all(clients.split(",").flatMap((client) => paths.split(",").map((path) => run(client, path))));
