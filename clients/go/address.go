package tidegate

import (
	"net/netip"
	"strings"
)

// ipv6Prefix: IPv6 clients are counted by their /64, which one customer usually has.
const ipv6Prefix = 64

// ClientAddress is the value under which a client is counted. peer is the address that the request
// came from, with or without a port, and forwardedFor the values of X-Forwarded-For in their order.
//
// Each proxy appends the address that it was called from to X-Forwarded-For, so our own proxies wrote
// its right end and the client its left end. With two trusted hops the second address from the right
// is the client's. What does not parse falls back to peer, so that a client cannot choose under what
// it is counted.
func ClientAddress(peer string, forwardedFor []string, trustedHops int) string {
	address, ok := parseHop(peer)
	if trustedHops > 0 && len(forwardedFor) > 0 {
		hops := strings.Split(strings.Join(forwardedFor, ","), ",")
		if trustedHops <= len(hops) {
			if hop, isAddress := parseHop(hops[len(hops)-trustedHops]); isAddress {
				address, ok = hop, true
			}
		}
	}
	if !ok {
		return peer
	}
	if address.Is4() {
		return address.String()
	}
	network, _ := address.Prefix(ipv6Prefix)
	return network.String()
}

// parseHop reads an address, with or without a port, brackets or quotes.
func parseHop(text string) (netip.Addr, bool) {
	text = strings.TrimSpace(text)
	if len(text) >= 2 && strings.HasPrefix(text, `"`) && strings.HasSuffix(text, `"`) {
		text = text[1 : len(text)-1]
	}
	bare := text
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		bare = text[1 : len(text)-1]
	}
	address, err := netip.ParseAddr(bare)
	if err != nil {
		withPort, err := netip.ParseAddrPort(text)
		if err != nil {
			return netip.Addr{}, false
		}
		address = withPort.Addr()
	}
	return address.Unmap(), address.Zone() == ""
}
