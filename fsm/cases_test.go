package fsm_test

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

func TestCasesQuick(t *testing.T) {
	dirs, _ := filepath.Glob("../../shared/cases/*/policy.yaml")
	for _, pf := range dirs {
		dir := filepath.Dir(pf)
		t.Run(filepath.Base(dir), func(t *testing.T) { quick(t, dir) })
	}
}

func quick(t *testing.T, dir string) {
	src, _ := os.ReadFile(dir + "/policy.yaml")
	p, err := policy.Parse("policy.yaml", src)
	if err != nil {
		t.Fatal(err)
	}
	f, _ := os.Open(dir + "/trace.jsonl")
	w, _ := os.Open(dir + "/want.jsonl")
	wants := bufio.NewScanner(w)
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	m := fsm.New()
	rev := fsm.Revision(1)
	n := 0
	for sc.Scan() {
		n++
		var l struct {
			At                                            time.Time
			Principal, Api_class, Decision_id, Gateway, Tier string
			Cost                                          *int64
			Policy_revision                               uint64
			Policy                                        json.RawMessage
		}
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		at := fsm.Time(l.At.UnixNano())
		if !m.Born() {
			m.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Stamp: at, Birth: &fsm.Birth{Owned: []fsm.OwnedRange{{fsm.SlotRange{0, fsm.NumSlots - 1}, 1, 0}}, Bounds: fsm.DefaultBounds(), Revision: 1, Policy: p}})
		}
		if l.Policy != nil {
			q, err := policy.Parse("x", l.Policy)
			if err != nil {
				t.Fatal(err)
			}
			rev++
			m.Step(1, &fsm.Entry{Kind: fsm.KindInstall, Term: 1, Stamp: at, Install: &fsm.Install{rev, q}})
			continue
		}
		c := fsm.Check{Principal: l.Principal, Gateway: l.Gateway, DecisionID: l.Decision_id, Charge: fsm.Charge{l.Api_class, l.Tier, 1}, PolicyRevision: fsm.Revision(l.Policy_revision), RouteEpoch: 1}
		if c.Gateway == "" {
			c.Gateway = "insecure"
		}
		if l.Cost != nil {
			c.Cost = *l.Cost
		}
		e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: at, Checks: []fsm.Check{c}}
		var d fsm.Decision
		if fsm.ValidateCheck(&c) != nil {
			d.Reason = fsm.ReasonInvalidArgument
		} else {
			e2, err := fsm.DecodeEntry(fsm.AppendEntry(nil, e))
			if err != nil {
				t.Fatal(err)
			}
			d = m.Step(1, e2).Decisions[0]
		}
		wants.Scan()
		var want struct {
			Error, Reason, Policy_version, Limit, Retry_at string
			Replayed                                       bool
			Remaining                                      int64
			Retry_after_ms                                 int64
		}
		json.Unmarshal(wants.Bytes(), &want)
		reason := want.Reason
		if want.Error != "" {
			reason = want.Error
		}
		if d.Reason.String() != reason || want.Limit != d.Limit || (want.Error == "" && (d.Version != want.Policy_version || d.Remaining != want.Remaining || d.Replayed != want.Replayed)) {
			t.Errorf("line %d: %s\n got %+v", n, wants.Text(), d)
		}
		if want.Retry_at != "" {
			at, _ := time.Parse(time.RFC3339Nano, want.Retry_at)
			if int64(d.RetryAt) != at.UnixNano() {
				t.Errorf("line %d: %s\n got %+v %s", n, wants.Text(), d, time.Unix(0, int64(d.RetryAt)).UTC())
			}
		}
	}
}
