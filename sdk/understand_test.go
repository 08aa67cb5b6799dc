package sdk

import (
	"fmt"
	"testing"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/sdk/internal/link"
)

// Shows that whatever a node sends as a decision is an allow only if it says so, with the reason of one, to this very
// check, and that no wait that it tells is negative.
func FuzzUnderstand(f *testing.F) {
	f.Add(int32(1), "allowed", true, int64(0), int64(-5))
	f.Add(int32(2), "quota_exhausted", true, int64(1<<40), int64(1<<62))
	f.Add(int32(2), "allowed", true, int64(0), int64(0))
	f.Add(int32(1), "allowed", false, int64(-1<<63), int64(0))
	f.Fuzz(func(t *testing.T, outcome int32, reason string, ours bool, retryMillis, resetMillis int64) {
		p := &link.Decision{
			Outcome: quoratev1.Outcome(outcome), Reason: reason, Ours: ours, Dated: true, RetryAfterMillis: retryMillis,
			Limits: []link.Limit{{Name: "m", ResetMillis: resetMillis}, {}},
		}
		r, d := &run{call: link.NewCall()}, Decision{}
		r.call.Check.ID = "x"
		err := r.understand(p, &d)
		says := p.Outcome == quoratev1.Outcome_OUTCOME_ALLOWED && reason == "allowed" && ours
		if d.Allowed != says || err != nil && d.Source != SourceNone || d.RetryAfter < 0 ||
			err == nil && d.Limits[0].Reset < 0 {
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
