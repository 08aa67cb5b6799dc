package sdk

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// Shows that no bytes that a node may send as a decision panic, and that they are an allow only if they say so, with the
// reason of one, to this very check.
func FuzzUnderstand(f *testing.F) {
	for _, r := range []reply{allow(), deny(1 << 40)} {
		r.decision.DecisionId = "x"
		r.decision.Limits = []*quoratev1.LimitState{{Name: "m", ResetMs: -5}, {}}
		b, err := proto.Marshal(r.decision)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &quoratev1.Decision{}
		if proto.Unmarshal(b, p) != nil {
			return
		}
		r := &run{k: check{id: "x"}}
		d, err := r.understand(p)
		says := p.GetOutcome() == quoratev1.Outcome_OUTCOME_ALLOWED && p.GetReason() == "allowed" && p.GetDecisionId() == "x"
		if d.Allowed != says || err != nil && d.Source != SourceNone || d.RetryAfter < 0 {
			t.Errorf("%v became %+v, %v", p, d, err)
		}
	})
}

// BenchmarkCheck is a check that is sent, by many at once, with the node in the same process.
func BenchmarkCheck(b *testing.B) {
	c := mustCluster(b, 1, alwaysAllow, unhurried()...)
	defer c.close()
	client := c.mustClient(WithPrincipalCeiling(0))
	defer mustClose(b, client)
	mustReady(b, client)
	b.ReportAllocs()
	b.SetParallelism(128)
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if d, err := client.Check(bg(), fmt.Sprint(i%1000), "deny"); err != nil || !d.Verified() {
				b.Fatal(err)
			}
		}
	})
	b.ReportMetric(float64(client.Stats().Sends)/float64(client.Stats().Frames), "checks/frame")
}
