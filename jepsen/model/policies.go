package model

import (
	"fmt"
	"strings"
	"sync"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

const second = int64(1_000_000_000)

// cap is a limit that all policies of a run have, so the promise holds for it at all times.
type capped struct {
	name    string
	max     int64
	window  int64    // nanoseconds
	classes []string // whose admissions it counts
	// shared says that other classes may be counted with it, as the unlisted ones are.
	shared bool
}

// caps are the limits in every policy of policyText.
var caps = []capped{
	{"a-short", 4, 3 * second, []string{"a"}, false},
	{"a-long", 9, 12 * second, []string{"a"}, false},
	{"b-short", 5, 4 * second, []string{"b"}, false},
	{"both", 11, 10 * second, []string{"a", "b"}, false},
	{"d-short", 3, 2 * second, []string{"x"}, true},
	{"d-short", 3, 2 * second, []string{"c"}, true},
}

// longestWindow is that of all policies, and longer than any replay horizon.
const longestWindow = 30 * second

// policyText is the policy of a revision: what it has beside the caps comes and goes.
func policyText(revision int) string {
	extraA, extraB, c := "", "", ""
	switch revision % 5 {
	case 1:
		extraA = ", {name: a-extra, limit: 6, window: 6s}"
	case 2:
		extraB = ", {name: b-extra, limit: 30, window: 30s}"
	case 3:
		c = "\n  c: {replay_horizon: 6s, limits: [{name: d-short, limit: 3, window: 2s}]}"
	}
	return fmt.Sprintf(strings.TrimLeft(`
version: p%d
default: {replay_horizon: 6s, limits: [{name: d-short, limit: 3, window: 2s}]}
classes:
  a: {replay_horizon: 9s, limits: [{name: a-short, limit: 4, window: 3s}, {name: a-long, limit: 9, window: 12s}%s]}
  b: {replay_horizon: 6s, limits: [{name: b-short, limit: 5, window: 4s}%s]}%s
tiers:
  pro: {b: {limits: [{name: b-short, limit: 5, window: 4s}, {name: b-pro, limit: 8, window: 9s}]}}
groups:
  both: {classes: [a, b], limits: [{name: both, limit: 11, window: 10s}]}
`, "\n"), revision, extraA, extraB, c)
}

// mostRevisions is how many policies one run can have.
const mostRevisions = 12

// installs are the policies by revision, from 1. They are never changed, so all runs share them.
var installs = sync.OnceValues(func() ([]fsm.Install, error) {
	out := make([]fsm.Install, mostRevisions+1)
	for r := 1; r <= mostRevisions; r++ {
		p, err := policy.Parse("policy.yaml", []byte(policyText(r)))
		if err != nil {
			return nil, err
		}
		out[r] = fsm.NewInstall(fsm.Revision(r), p)
	}
	return out, nil
})
