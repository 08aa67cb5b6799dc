package group

import (
	"bytes"
	"context"
	"errors"
	"testing"
)

// A question is answered by a node's process that has no group at all; one for another node or cluster,
// a node that answers none, and one that is down, give an error.
func TestAsk(t *testing.T) {
	answering, err := Listen("127.0.0.1:0", ListenerConfig{
		Cluster: "c1", Node: "a",
		Answer: func(from string, question []byte) []byte { return append([]byte(from+" asks "), question...) },
	})
	must(t, err)
	defer func() { must(t, answering.Close()) }()
	b := mustListen(t, "c1", "b")
	answer, err := b.Ask(t.Context(), "a", answering.Addr(), []byte("who"))
	if err != nil || string(answer) != "b asks who" {
		t.Errorf("%q, %v", answer, err)
	}
	big := bytes.Repeat([]byte("x"), maxQuestionBytes-100)
	if answer, err := b.Ask(t.Context(), "a", answering.Addr(), big); err != nil || len(answer) != len(big)+7 {
		t.Errorf("a big one: %d bytes, %v", len(answer), err)
	}

	gone := mustListen(t, "c1", "g")
	addr := gone.Addr()
	must(t, gone.Close())
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, ask := range map[string]func() ([]byte, error){
		"another node":    func() ([]byte, error) { return b.Ask(t.Context(), "c", answering.Addr(), nil) },
		"another cluster": func() ([]byte, error) { return mustListen(t, "c2", "z").Ask(t.Context(), "a", answering.Addr(), nil) },
		"no answers":      func() ([]byte, error) { return mustListen(t, "c1", "z").Ask(t.Context(), "b", b.Addr(), nil) },
		"down":            func() ([]byte, error) { return b.Ask(t.Context(), "g", addr, nil) },
		"too long": func() ([]byte, error) {
			return b.Ask(t.Context(), "a", answering.Addr(), make([]byte, maxQuestionBytes+1))
		},
		"given up": func() ([]byte, error) { return b.Ask(cancelled, "a", answering.Addr(), nil) },
	} {
		if answer, err := ask(); !errors.Is(err, ErrNoAnswer) {
			t.Errorf("%s: %q, %v", name, answer, err)
		}
	}
}
