import { readFileSync } from "node:fs";

/** The test vectors that the clients of all languages share; tests run in the folder of the package. */
export function cases<T>(name: string): T[] {
  const file = JSON.parse(readFileSync(`../vectors/${name}.json`, "utf8")) as { cases: T[] };
  return file.cases;
}
