package tidegate

import (
	"encoding/base64"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

const (
	// itemsMax is the most policies of one response; further ones are ignored.
	itemsMax = 16
	// timeMax is the longest time that is believed. A longer one counts as a day, after which one
	// request finds out whether it still holds.
	timeMax = 24 * time.Hour
	// remainingMax is the largest integer of a structured field.
	remainingMax = 999_999_999_999_999
	// epochMin: a reset above it is a point in time (seconds since 1970), below it a number of
	// seconds.
	epochMin = 1e9
	// epochMillisMin: a reset above it is in milliseconds.
	epochMillisMin = 1e12
)

// item is what remains of one policy.
type item struct {
	name string
	// partition is the partition key in base64; empty if there is none.
	partition string
	limit     *int64
	window    *time.Duration
	remaining int64
	// reset is the time within which no more than remaining may be used.
	reset *time.Duration
}

// fields is what a response says about limits.
type fields struct {
	policies   []item
	retryAfter *time.Duration
}

// parseFields reads the header fields of a response, in this order of precedence:
//
//	RateLimit: "a";r=50;t=30                       the IETF draft from -08 to -11
//	RateLimit: limit=100, remaining=50, reset=30   draft -07
//	RateLimit-Limit, -Remaining, -Reset            drafts up to -06
//	X-RateLimit-*, X-Rate-Limit-*                  the convention before the draft
//
// A malformed field is ignored, as the draft demands. wall is the time of this machine; it is needed
// for dates, where the response has no Date.
func parseFields(header http.Header, wall time.Time) fields {
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		wall = date
	}
	found := fields{retryAfter: retryAfter(header.Get("Retry-After"), wall)}
	if age, ok := number(header.Get("Age")); ok && age > 0 {
		// From a cache: true when it was stored.
		return found
	}
	found.policies = draft(header)
	if found.policies == nil {
		found.policies = draft07(header)
	}
	if found.policies == nil {
		found.policies = separate(header, wall)
	}
	return found
}

// === the forms ===

type policyKey struct{ name, partition string }

func draft(header http.Header) []item {
	type quota struct {
		limit  *int64
		window *time.Duration
	}
	quotas := map[policyKey]quota{}
	for _, member := range list(header, "RateLimit-Policy") {
		name, ok := text(member.Value)
		limit := count(member.Params, "q")
		if !ok || limit == nil {
			continue
		}
		quotas[policyKey{name, partition(member.Params)}] = quota{limit, window(member.Params)}
	}
	var found []item
	seen := map[policyKey]bool{}
	for _, member := range list(header, "RateLimit") {
		name, ok := text(member.Value)
		remaining, reset := count(member.Params, "r"), count(member.Params, "t")
		_, hasReset := member.Params.Get("t")
		if !ok || remaining == nil || (hasReset && reset == nil) {
			return nil
		}
		key := policyKey{name, partition(member.Params)}
		if seen[key] || len(found) == itemsMax {
			continue
		}
		seen[key] = true
		of, ok := quotas[key]
		if !ok {
			of = quotas[policyKey{name, ""}]
		}
		found = append(found, item{name, key.partition, of.limit, of.window, *remaining, whole(reset)})
	}
	return found
}

func draft07(header http.Header) []item {
	members, err := httpsfv.UnmarshalDictionary(header.Values("RateLimit"))
	if err != nil {
		return nil
	}
	value := func(name string) *int64 {
		member, _ := members.Get(name)
		if single, ok := member.(httpsfv.Item); ok {
			return natural(single.Value)
		}
		return nil
	}
	remaining, limit := value("remaining"), value("limit")
	if remaining == nil {
		return nil
	}
	of := windowOf(limit, list(header, "RateLimit-Policy"))
	return []item{{"", "", limit, of, *remaining, whole(value("reset"))}}
}

func separate(header http.Header, wall time.Time) []item {
	for _, prefix := range []string{"RateLimit", "X-RateLimit", "X-Rate-Limit"} {
		remaining, ok := number(header.Get(prefix + "-Remaining"))
		if !ok {
			continue
		}
		found := item{remaining: int64(math.Min(remaining, remainingMax))}
		if limits := list(header, prefix+"-Limit"); len(limits) > 0 {
			found.limit = natural(limits[0].Value)
			found.window = windowOf(found.limit, append(limits[1:], list(header, "RateLimit-Policy")...))
		} else {
			found.window = windowOf(nil, nil)
		}
		if reset, ok := number(header.Get(prefix + "-Reset")); ok {
			now := float64(wall.UnixMilli()) / 1e3
			switch {
			case reset >= epochMillisMin:
				reset = reset/1e3 - now
			case reset >= epochMin:
				reset -= now
			}
			found.reset = seconds(reset)
		}
		return []item{found}
	}
	return nil
}

// windowOf is the window of the policy with this limit: 100;w=60.
func windowOf(limit *int64, policies []httpsfv.Item) *time.Duration {
	for _, policy := range policies {
		value := natural(policy.Value)
		if found := window(policy.Params); found != nil && limit != nil && value != nil && *value == *limit {
			return found
		}
	}
	return nil
}

// === values ===

// list returns the items of a list; none if it is malformed.
func list(header http.Header, name string) []httpsfv.Item {
	members, err := httpsfv.UnmarshalList(header.Values(name))
	if err != nil {
		return nil
	}
	items := make([]httpsfv.Item, 0, len(members))
	for _, member := range members {
		single, ok := member.(httpsfv.Item)
		if !ok {
			return nil
		}
		items = append(items, single)
	}
	return items
}

func text(value any) (string, bool) {
	if token, ok := value.(httpsfv.Token); ok {
		return string(token), true
	}
	name, ok := value.(string)
	return name, ok
}

func partition(params *httpsfv.Params) string {
	value, _ := params.Get("pk")
	if key, ok := value.([]byte); ok {
		return base64.StdEncoding.EncodeToString(key)
	}
	return ""
}

func natural(value any) *int64 {
	if found, ok := value.(int64); ok && found >= 0 {
		return &found
	}
	return nil
}

func count(params *httpsfv.Params, name string) *int64 {
	value, _ := params.Get(name)
	return natural(value)
}

func window(params *httpsfv.Params) *time.Duration {
	found := count(params, "w")
	if found == nil || *found == 0 {
		return nil
	}
	return whole(found)
}

// number reads a decimal number of digits, with an optional fraction.
func number(text string) (float64, bool) {
	text = strings.TrimSpace(text)
	if text == "" || len(text) > 20 || strings.Trim(text, "0123456789.") != "" {
		return 0, false
	}
	found, err := strconv.ParseFloat(text, 64)
	return found, err == nil
}

func whole(value *int64) *time.Duration {
	if value == nil {
		return nil
	}
	return seconds(float64(*value))
}

func seconds(value float64) *time.Duration {
	value = math.Min(math.Max(value, 0), timeMax.Seconds())
	found := time.Duration(math.Round(value * float64(time.Second)))
	return &found
}

func retryAfter(text string, wall time.Time) *time.Duration {
	if found, ok := number(text); ok {
		return seconds(found)
	}
	if date, err := http.ParseTime(text); err == nil {
		return seconds(date.Sub(wall).Seconds())
	}
	return nil
}
