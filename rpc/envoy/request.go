package envoy

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// MaxDescriptors bounds a request.
	MaxDescriptors = 64
	// MaxEntries bounds a descriptor, the request id aside.
	MaxEntries = policy.MaxEnvoyEntries
	// MaxRequestIDBytes bounds a request id: with what is added to it, it names decisions.
	MaxRequestIDBytes = 96
	// sumBytes is how much of a request's sum is in the id of a decision, of one request id.
	sumBytes = 8
)

// descriptor is one as it is matched: without the entry that has the request id.
type descriptor struct {
	keys, values []string
	hits         int64 // 0: to be looked up only
}

func malformed(format string, args ...any) error {
	return quotaerr.New(quotaerr.InvalidArgument, format, args...)
}

// bounded refuses a request whose size is wrong, before anything is made of it.
func bounded(req *ratelimitv3.RateLimitRequest) error {
	n := len(req.GetDescriptors())
	switch {
	case req.GetDomain() == "":
		return malformed("the domain is empty: set the filter's domain to one under envoy in the policy")
	case n == 0:
		return malformed("there are no descriptors: give the route rate_limits actions")
	case n > MaxDescriptors:
		return malformed("there are %d descriptors: send at most %d", n, MaxDescriptors)
	}
	for i, d := range req.GetDescriptors() {
		if n := len(d.GetEntries()); n == 0 || n > MaxEntries+1 { // one of them may be the request id
			return malformed("descriptor %d has %d entries: send 1 to %d", i, n, MaxEntries)
		}
	}
	return nil
}

// descriptorsOf reads a request's descriptors, and the request id that they have among their entries, if one is
// trusted.
func descriptorsOf(
	req *ratelimitv3.RateLimitRequest, requestIDKey string,
) (out []descriptor, requestID string, err error) {
	for i, in := range req.GetDescriptors() {
		d, id, err := descriptorOf(i, req, in, requestIDKey)
		switch {
		case err != nil:
			return nil, "", err
		case id != "" && requestID != "" && id != requestID:
			return nil, "", malformed("descriptor %d has another %.128q than one before", i, requestIDKey)
		case id != "":
			requestID = id
		}
		out = append(out, d)
	}
	return out, requestID, nil
}

// descriptorOf reads the descriptor number i of a request.
func descriptorOf(
	i int, req *ratelimitv3.RateLimitRequest, in *commonv3.RateLimitDescriptor, requestIDKey string,
) (d descriptor, requestID string, err error) {
	for _, e := range in.GetEntries() {
		if requestIDKey == "" || e.GetKey() != requestIDKey {
			d.keys, d.values = append(d.keys, e.GetKey()), append(d.values, e.GetValue())
			continue
		}
		switch n := len(e.GetValue()); {
		case requestID != "":
			return d, "", malformed("descriptor %d has the entry %.128q twice", i, requestIDKey)
		case n == 0 || n > MaxRequestIDBytes:
			return d, "", malformed("descriptor %d has a %.128q of %d bytes: send 1 to %d", i, requestIDKey, n,
				MaxRequestIDBytes)
		}
		requestID = e.GetValue()
	}
	switch {
	case len(d.keys) == 0:
		return d, "", malformed("descriptor %d has no entry but %.128q: put that beside those that it is for", i,
			requestIDKey)
	case len(d.keys) > MaxEntries:
		return d, "", malformed("descriptor %d has %d entries: send at most %d", i, len(d.keys), MaxEntries)
	case in.GetLimit() != nil:
		return d, "", malformed("descriptor %d brings a limit of its own: limits are in the policy, take it out of the "+
			"action", i)
	}
	d.hits, err = hitsOf(i, req, in)
	return d, requestID, err
}

// hitsOf is what a descriptor costs: its own hits, else the request's, of which 0 is 1.
func hitsOf(i int, req *ratelimitv3.RateLimitRequest, in *commonv3.RateLimitDescriptor) (int64, error) {
	if in.GetIsNegativeHits() {
		return 0, malformed("descriptor %d has is_negative_hits: nothing is handed back of what was consumed", i)
	}
	own := in.GetHitsAddend()
	switch {
	case own == nil:
		return max(1, int64(req.GetHitsAddend())), nil
	case own.GetValue() > uint64(policy.MaxLimit):
		return 0, malformed("descriptor %d has a hits_addend of %d: send at most 2^53", i, own.GetValue())
	}
	return int64(own.GetValue()), nil
}

// decisionIDs makes the ids of a request's decisions, by their position in it. Those of a request id are the same again
// for the same descriptors of the same domain, and others for others: one request may be asked about more than once.
func decisionIDs(domain, requestID string, descriptors []descriptor) func(position int) string {
	base := rand.Text()
	if requestID != "" {
		base = requestID + "/" + sumOf(domain, descriptors)
	}
	return func(position int) string { return fmt.Sprintf("%s/%d", base, position) }
}

// sumOf tells requests apart. All parts are preceded by their lengths, so that no two requests read the same.
func sumOf(domain string, descriptors []descriptor) string {
	b := binary.AppendUvarint(nil, uint64(len(domain)))
	b = append(b, domain...)
	for _, d := range descriptors {
		b = binary.AppendUvarint(b, uint64(d.hits))
		b = binary.AppendUvarint(b, uint64(len(d.keys)))
		for i := range d.keys {
			for _, s := range []string{d.keys[i], d.values[i]} {
				b = binary.AppendUvarint(b, uint64(len(s)))
				b = append(b, s...)
			}
		}
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:sumBytes])
}

// domainOf is a domain of the policy.
func domainOf(p *policy.Policy, name string) (*policy.EnvoyDomain, error) {
	if d := p.Envoy[name]; d != nil {
		return d, nil
	}
	return nil, malformed("the policy %.128q has no domain %.128q: put it under envoy there, or set the filter's "+
		"domain to one that is", p.Version, name)
}
