// Ten workers fetch pages of a server as fast as it allows, and no faster.
//
//   npm test && node build/examples/pace.js https://api.example.com/items/

import { pacedFetch } from "../src/index.js";

const [, , url] = process.argv;
const fetch = pacedFetch();
const pages = Array.from({ length: 100 }, (_, page) => page).values();

async function worker(): Promise<void> {
  for (const page of pages) {
    const response = await fetch(`${url}${page}`);
    console.log(page, response.status, response.headers.get("ratelimit"));
  }
}

await Promise.all(Array.from({ length: 10 }, worker));
