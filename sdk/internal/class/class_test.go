package class

import (
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// Shows how settings are read: the modes by name, the strictest where nothing or something unknown is said, defaults where
// a time is missing, and names that are not listed as default.
func TestFromProto(t *testing.T) {
	set := FromProto(7, "v7", []*quoratev1.ClassSettings{
		{Name: "default", OnUnavailable: quoratev1.FailureMode_FAILURE_MODE_ALLOW, Timeout: durationpb.New(time.Second)},
		{Name: "silent"}, {Name: "new", OnUnavailable: 99},
		{Name: "local", OnUnavailable: quoratev1.FailureMode_FAILURE_MODE_LOCAL, LocalLimit: math.MaxInt64,
			LocalWindow: durationpb.New(time.Minute)},
		{Name: "no limit", OnUnavailable: quoratev1.FailureMode_FAILURE_MODE_LOCAL, LocalWindow: durationpb.New(1)},
		{Name: "no window", OnUnavailable: quoratev1.FailureMode_FAILURE_MODE_LOCAL, LocalLimit: 1},
		{Name: "off", Disabled: true, Timeout: durationpb.New(-1), ReplayHorizon: durationpb.New(time.Hour)},
	})
	for name, want := range map[string]Mode{
		"default": Allow, "invented": Allow, "silent": Deny, "new": Deny, "local": Local, "no limit": Deny, "no window": Deny,
	} {
		if got := set.Of(name).Mode; got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
	if set.Of("invented").Name != "default" || set.Of("silent").Timeout != 100*time.Millisecond ||
		set.Of("silent").Horizon != 30*time.Second || set.Of("default").Timeout != time.Second || !set.Of("off").Disabled ||
		set.Of("off").Timeout != 100*time.Millisecond || set.Of("off").Horizon != time.Hour ||
		set.Of("local").LocalMax != policy.MaxLimit || set.Revision != 7 || set.Version != "v7" {
		t.Errorf("%+v", set)
	}
	if none := None().Of("x"); none.Mode != Deny || none.Timeout != 100*time.Millisecond || none.Disabled {
		t.Errorf("%+v", none)
	}
}

// Shows that a policy file says the same as the settings that the cluster makes of it, and that counters live on.
func TestFromPolicy(t *testing.T) {
	p, err := policy.Parse("p.yaml", []byte(`version: p1
default: {limits: [{name: d, limit: 1, window: 1s}]}
classes:
  a: {limits: [{name: m, limit: 3, window: 1s}], on_unavailable: allow, timeout: 1s, replay_horizon: 20s}
  l: {limits: [{name: m, limit: 3, window: 1s}], on_unavailable: local, local_limit: {limit: 4, window: 2s}}
  s: {limits: [{name: m, limit: 3, window: 1s}], disabled: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	set := FromPolicy(p)
	if a := set.Of("a"); a.Mode != Allow || a.Timeout != time.Second || a.Horizon != 20*time.Second {
		t.Errorf("%+v", a)
	}
	if l := set.Of("l"); l.Mode != Local || l.LocalMax != 4 || l.LocalWindowNanos != int64(2*time.Second) {
		t.Errorf("%+v", l)
	}
	if !set.Of("s").Disabled || set.Of("x").Mode != Deny || set.Revision != 0 {
		t.Errorf("%+v", set)
	}
	set.Of("a").Counters[Allowed].Add(3)
	next := FromProto(2, "", []*quoratev1.ClassSettings{{Name: "a"}, {Name: "b"}})
	next.Inherit(set)
	n := 0
	next.Each(func(*Class) { n++ })
	if next.Of("a").Counters[Allowed].Load() != 3 || next.Of("b").Counters[Allowed].Load() != 0 || n != 3 {
		t.Errorf("%d classes: %+v", n, next)
	}
}
