// A server behind one proxy, which limits its clients by user, or else by address.
//
//   tidegate serve &
//   npm test && node build/examples/express.js

import express, { type Request } from "express";

import { rateLimit } from "../src/express.js";
import { Client, byAddress } from "../src/index.js";

const client = new Client({ url: "http://127.0.0.1:8080", domain: "demo" });
const app = express();
app.use(
  rateLimit<Request>({
    client,
    trustedHops: 1,
    descriptors: (request, address) => {
      const user = request.get("x-user");
      return user === undefined ? byAddress(request, address) : [{ user }];
    },
  }),
);
app.get("/", (_request, response) => {
  response.send("hello\n");
});
app.listen(8000, "127.0.0.1");
