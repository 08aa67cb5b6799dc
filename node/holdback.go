package node

import (
	"context"
	"log/slog"
	"sync"
)

// maxHeldRecords bounds the records that are held back.
const maxHeldRecords = 1000

// holdback keeps a node's log to itself until it is clear that the node takes part: a start that is refused
// then says one thing, why, and not what happened by the way.
type holdback struct {
	slog.Handler
	held *heldRecords
}

// heldRecords is shared by a handler and those made of it.
type heldRecords struct {
	mu      sync.Mutex // guards the fields below
	let     bool       // go
	records []func()
}

func newHoldback(h slog.Handler) *holdback { return &holdback{h, &heldRecords{}} }

// Handle passes a record on, at once or when the log is let go.
func (h *holdback) Handle(ctx context.Context, r slog.Record) error {
	h.held.mu.Lock()
	defer h.held.mu.Unlock()
	if h.held.let || len(h.held.records) >= maxHeldRecords {
		h.held.release()
		return h.Handler.Handle(ctx, r)
	}
	r = r.Clone()
	h.held.records = append(h.held.records, func() {
		_ = h.Handler.Handle(context.WithoutCancel(ctx), r) // as with any log line that cannot be written
	})
	return nil
}

// WithAttrs is the handler with attributes added.
func (h *holdback) WithAttrs(a []slog.Attr) slog.Handler {
	return &holdback{h.Handler.WithAttrs(a), h.held}
}

// WithGroup is the handler with a group opened.
func (h *holdback) WithGroup(name string) slog.Handler {
	return &holdback{h.Handler.WithGroup(name), h.held}
}

// letGo writes what was held back; nothing is held from now on.
func (h *holdback) letGo() {
	h.held.mu.Lock()
	defer h.held.mu.Unlock()
	h.held.release()
}

func (h *heldRecords) release() {
	for _, write := range h.records {
		write()
	}
	h.let, h.records = true, nil
}
