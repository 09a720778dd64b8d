import { isIPv4, isIPv6 } from "node:net";

/**
 * The value under which a client is counted: its IPv4 address, or its IPv6 /64, which one customer
 * usually has.
 *
 * Each proxy appends the address that it was called from to `X-Forwarded-For`, so our own proxies wrote
 * its right end and the client its left end. With two trusted hops the second address from the right
 * is the client's. What does not parse falls back to `peer`, the address that the request came from, so
 * that a client cannot choose under what it is counted.
 */
export function clientAddress(peer: string, forwardedFor: readonly string[], trustedHops: number): string {
  const hops = forwardedFor.join(",").split(",");
  const hop = trustedHops > 0 ? hops.at(-trustedHops) : undefined;
  return group(hop ?? "") ?? group(peer) ?? peer;
}

/** An address, with or without a port, brackets or quotes. */
function group(hop: string): string | undefined {
  const text = hop.trim().replace(/^"(.*)"$/, "$1");
  const [, bracketed, port6] = /^\[(.*)\](?::(\d+))?$/.exec(text) ?? [];
  const [, v4, port4] = /^([\d.]+):(\d+)$/.exec(text) ?? [];
  if (Number(port6 ?? port4 ?? 0) > 65_535) {
    return undefined;
  }
  const address = bracketed ?? v4 ?? text;
  if (isIPv4(address)) {
    return address;
  }
  return isIPv6(address) && !address.includes("%") ? groupIPv6(address) : undefined;
}

function groupIPv6(address: string): string {
  // URL writes an address in its canonical form (RFC 5952), in brackets.
  const canonical = (text: string) => new URL(`http://[${text}]/`).hostname.slice(1, -1);
  const [head = "", tail] = canonical(address).split("::");
  const left = head === "" ? [] : head.split(":");
  const right = tail ? tail.split(":") : [];
  const zeros = Array<string>(8 - left.length - right.length).fill("0");
  const parts = tail === undefined ? left : [...left, ...zeros, ...right];
  const [high, low] = parts.slice(6).map((part) => parseInt(part, 16)) as [number, number];
  if (parts.slice(0, 5).every((part) => part === "0") && parts[5] === "ffff") {
    return [high >> 8, high & 255, low >> 8, low & 255].join(".");
  }
  return `${canonical([...parts.slice(0, 4), "0", "0", "0", "0"].join(":"))}/64`;
}
