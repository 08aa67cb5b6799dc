package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"
	"weak"

	"github.com/quorate/quorate/control/bodies"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

const (
	// maxDecoding bounds the policies that are decoded at one time: each may need gigabytes meanwhile.
	maxDecoding = 2
	// keptPolicies and keptBytes (of encoded bodies) bound the policies that are kept although nobody uses them
	// at present. The newest is kept whatever its size.
	keptPolicies = 4
	keptBytes    = int64(256) << 20
	// The pauses between attempts to come by a body.
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
)

// ErrUnusable is wrapped by the error of a body that has its digest and is no policy, or lacks a class that is
// switched: however often one looks.
var ErrUnusable = errors.New("the body cannot be used")

// policies are the policies that are in use on this node, each of them once.
type policies struct {
	bodies   *bodies.Store
	logger   *slog.Logger
	decoding chan struct{} // one per policy that is being decoded

	mu      sync.Mutex // guards the fields below
	entries map[string]*entry
	decoded map[state.Digest]weak.Pointer[policy.Policy] // bodies, as far as somebody uses them
	kept    []keptPolicy                                 // newest last
}

// entry is one policy, wanted or in use.
type entry struct {
	turn    chan struct{} // held by whoever looks for it
	waiting int
	found   weak.Pointer[policy.Policy]
}

type keptPolicy struct {
	policy *policy.Policy
	bytes  int64
}

func newPolicies(store *bodies.Store, logger *slog.Logger) *policies {
	return &policies{
		bodies: store, logger: logger, decoding: make(chan struct{}, maxDecoding), entries: map[string]*entry{},
		decoded: map[state.Digest]weak.Pointer[policy.Policy]{},
	}
}

// keyOf tells policies apart. The revision is not in it: several may name the same policy.
func keyOf(ref *fsm.PolicyRef) string {
	b := append([]byte(nil), ref.Body[:]...)
	b = strconv.AppendQuote(b, ref.Version)
	for _, s := range ref.Switches {
		b = strconv.AppendBool(strconv.AppendQuote(b, s.Class), s.Disabled)
	}
	return string(b)
}

// find is the policy, found by look where it is not in use yet: by one caller at a time. When that one gives
// up, the next looks.
func (p *policies) find(
	ctx context.Context, ref *fsm.PolicyRef, look func(context.Context) (*policy.Policy, error),
) (*policy.Policy, error) {
	key := keyOf(ref)
	e := p.join(key)
	defer p.leave(e)
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return p.usedOr(e, ref.Bytes, func() (*policy.Policy, error) { return look(ctx) })
}

// usedOr is the policy of an entry: the one that somebody uses, or else what look finds. It is kept.
func (p *policies) usedOr(e *entry, size int64, look func() (*policy.Policy, error)) (*policy.Policy, error) {
	found := p.known(e)
	if found == nil {
		var err error
		if found, err = look(); err != nil {
			return nil, err
		}
	}
	return p.keep(e, found, size), nil
}

// known is the policy of an entry, if somebody uses it.
func (p *policies) known(e *entry) *policy.Policy {
	p.mu.Lock()
	defer p.mu.Unlock()
	return e.found.Value()
}

func (p *policies) join(key string) *entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[key]
	if e == nil {
		e = &entry{turn: make(chan struct{}, 1)}
		p.entries[key] = e
	}
	e.waiting++
	return e
}

// leave forgets entries that nobody waits for and whose policy nobody uses.
func (p *policies) leave(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.waiting--
	for key, e := range p.entries {
		if e.waiting == 0 && e.found.Value() == nil {
			delete(p.entries, key)
		}
	}
}

// keep makes found the newest of the policies that are kept, unless another was found for the entry meanwhile: then
// that one. It returns which.
func (p *policies) keep(e *entry, found *policy.Policy, size int64) *policy.Policy {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first := e.found.Value(); first != nil {
		found = first
	}
	e.found = weak.Make(found)
	kept, total := []keptPolicy{{found, size}}, size
	for i := len(p.kept) - 1; i >= 0 && len(kept) < keptPolicies; i-- {
		k := p.kept[i]
		if k.policy == found || total+k.bytes > keptBytes {
			continue
		}
		total += k.bytes
		kept = append([]keptPolicy{k}, kept...)
	}
	p.kept = kept
	return found
}

// local makes a policy of its body on this node; bodies.ErrNotFound while that is not here.
func (p *policies) local(ctx context.Context, ref *fsm.PolicyRef) (*policy.Policy, error) {
	body, err := p.body(ctx, ref.Body)
	if err != nil {
		return nil, errPolicy(ref, err)
	}
	if len(ref.Switches) == 0 && ref.Version == body.Version {
		return body, nil
	}
	effective, err := body.With(ref.Version, ref.Switches)
	if err != nil {
		return nil, errPolicy(ref, fmt.Errorf("%w: %w", ErrUnusable, err))
	}
	return effective, nil
}

// body is a decoded body: the one that is in use, or it is decoded from what is on this node.
func (p *policies) body(ctx context.Context, d state.Digest) (*policy.Policy, error) {
	select {
	case p.decoding <- struct{}{}:
		defer func() { <-p.decoding }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if used := p.used(d); used != nil {
		return used, nil
	}
	f, size, err := p.bodies.Get(d)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	if size > state.MaxBodyBytes {
		return nil, fmt.Errorf("%w: it has %d bytes, at most %d are possible", bodies.ErrTooLarge, size, state.MaxBodyBytes)
	}
	var encoded bytes.Buffer
	encoded.Grow(int(size) + bytes.MinRead)
	if _, err := encoded.ReadFrom(f); err != nil {
		return nil, err
	}
	decoded, err := policy.Decode(encoded.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	p.use(d, decoded)
	// Kept under what a revision that puts it in force as it is will ask for.
	ref := fsm.PolicyRef{Body: d, Version: decoded.Version}
	e := p.join(keyOf(&ref))
	defer p.leave(e)
	return p.keep(e, decoded, size), nil
}

// used is a body that somebody uses.
func (p *policies) used(d state.Digest) *policy.Policy {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.decoded[d].Value()
}

// use notes a decoded body, and forgets those that nobody uses any more.
func (p *policies) use(d state.Digest, decoded *policy.Policy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for other, w := range p.decoded {
		if w.Value() == nil {
			delete(p.decoded, other)
		}
	}
	p.decoded[d] = weak.Make(decoded)
}

func errPolicy(ref *fsm.PolicyRef, err error) error {
	return fmt.Errorf("policy revision %d (%s): %w", ref.Revision, ref.Version, err)
}

// Find is the policy that ref names. Its body is read on this node, or fetched, which is to put it into Bodies;
// a damaged one is removed and fetched anew. It is looked for until it is there or ctx ends, whose error is then
// wrapped; the only other error wraps ErrUnusable.
//
// Callers that name the same policy, at once or later, share one *policy.Policy while any of them uses it.
func (c *Control) Find(
	ctx context.Context, ref fsm.PolicyRef, fetch func(context.Context, state.Digest) error,
) (*policy.Policy, error) {
	return c.policies.find(ctx, &ref, func(ctx context.Context) (*policy.Policy, error) {
		return c.policies.search(ctx, &ref, fetch)
	})
}

// search tries again and again.
func (p *policies) search(
	ctx context.Context, ref *fsm.PolicyRef, fetch func(context.Context, state.Digest) error,
) (*policy.Policy, error) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		found, err := p.try(ctx, ref, fetch)
		if err == nil || errors.Is(err, ErrUnusable) {
			return found, err
		}
		p.logger.Warn("a policy is not here yet: trying again", "revision", ref.Revision, "error", err)
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}

// try looks here, then fetches.
func (p *policies) try(
	ctx context.Context, ref *fsm.PolicyRef, fetch func(context.Context, state.Digest) error,
) (*policy.Policy, error) {
	found, err := p.local(ctx, ref)
	switch {
	case errors.Is(err, bodies.ErrNotFound):
	case errors.Is(err, bodies.ErrMismatch):
		p.logger.Error("a policy body on this node is damaged: fetching it anew", "error", err)
		if err := p.bodies.Discard(ref.Body); err != nil {
			return nil, errPolicy(ref, err)
		}
	default:
		return found, err
	}
	if err := fetch(ctx, ref.Body); err != nil {
		return nil, errPolicy(ref, err)
	}
	return p.local(ctx, ref)
}

// Policy is the policy that a revision puts in force, if its body is on this node; else bodies.ErrNotFound.
func (c *Control) Policy(ctx context.Context, r *state.Revision) (*policy.Policy, error) {
	ref := r.Ref()
	e := c.policies.join(keyOf(&ref)) // without a turn: it waits for nobody who fetches the body
	defer c.policies.leave(e)
	return c.policies.usedOr(e, ref.Bytes, func() (*policy.Policy, error) { return c.policies.local(ctx, &ref) })
}

// Body is the policy body of this digest, decoded, if it is on this node; else bodies.ErrNotFound. It is kept for a
// while, so that a revision which puts it in force finds it ready. Of a body that is no policy the error wraps
// ErrUnusable, and policy.ErrEncoding or policy.Problems.
func (c *Control) Body(ctx context.Context, d state.Digest) (*policy.Policy, error) {
	return c.policies.body(ctx, d)
}
