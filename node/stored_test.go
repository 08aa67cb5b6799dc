package node

import (
	"context"
	"errors"
	"testing"
)

// Shows that nobody gets past the gate before all have come to it, and nobody at all when one does not.
func TestGate(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	g := newGate(3)
	through := make(chan error, 2)
	for range 2 {
		g.pass()
		go func() { through <- g.wait(ctx) }()
	}
	select {
	case err := <-through:
		t.Fatalf("it is open with one missing: %v", err)
	default:
	}
	g.pass()
	for range 2 {
		if err := <-through; err != nil {
			t.Error(err)
		}
	}
	shut := newGate(2)
	shut.pass()
	go func() { through <- shut.wait(ctx) }()
	cancel()
	if err := <-through; !errors.Is(err, context.Canceled) {
		t.Errorf("a gate that stays shut: %v", err)
	}
}
