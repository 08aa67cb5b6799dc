package class

import (
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// Mode is what to do when a class's owner cannot be reached. The zero Mode is the strictest, the largest the laxest.
type Mode uint8

// The modes.
const (
	Deny Mode = iota
	Local
	Allow
)

// Outcome is how a check ended, for the counters.
type Outcome uint8

// The outcomes.
const (
	Allowed Outcome = iota
	Denied
	Hinted
	Disabled
	Bypassed
	LocallyAllowed
	LocallyDenied
	Unavailable
	Overloaded
	Refused
	Canceled
	outcomes
)

// Counters count the checks of a class by outcome.
type Counters [outcomes]atomic.Uint64

// Class is how a gateway treats a class.
type Class struct {
	Name             string
	Timeout, Horizon time.Duration
	Mode             Mode
	// LocalMax is how much the gateway admits in any window of LocalWindowNanos, with Local.
	LocalMax, LocalWindowNanos int64
	Disabled                   bool
	Counters                   *Counters
}

// Set is the classes of one revision.
type Set struct {
	Revision uint64
	Version  string
	classes  map[string]*Class
	other    *Class // default
}

// MaxClasses bounds a set: the listed classes, and default.
const MaxClasses = policy.MaxClasses + 1

// None is the set of who knows nothing: every class is denied.
func None() *Set { return newSet(0, "", nil) }

func newSet(revision uint64, version string, classes []*Class) *Set {
	s := &Set{Revision: revision, Version: version, classes: make(map[string]*Class, len(classes)+1)}
	for _, c := range classes {
		c.Timeout = orElse(c.Timeout, policy.DefaultTimeoutNanos)
		c.Horizon = orElse(c.Horizon, policy.DefaultReplayHorizonNanos)
		c.Counters = new(Counters)
		s.classes[c.Name] = c
	}
	if s.other = s.classes[policy.DefaultClass]; s.other == nil {
		s.other = &Class{
			Name: policy.DefaultClass, Timeout: time.Duration(policy.DefaultTimeoutNanos),
			Horizon: time.Duration(policy.DefaultReplayHorizonNanos), Counters: new(Counters),
		}
		s.classes[policy.DefaultClass] = s.other
	}
	return s
}

func orElse(d time.Duration, nanos int64) time.Duration {
	if d <= 0 {
		return time.Duration(nanos)
	}
	return d
}

// FromProto makes a set of the settings as they are watched.
func FromProto(revision uint64, version string, settings []*quoratev1.ClassSettings) *Set {
	classes := make([]*Class, 0, len(settings))
	for _, in := range settings {
		c := &Class{
			Name: in.GetName(), Timeout: in.GetTimeout().AsDuration(), Horizon: in.GetReplayHorizon().AsDuration(),
			Disabled: in.GetDisabled(),
		}
		switch in.GetOnUnavailable() {
		case quoratev1.FailureMode_FAILURE_MODE_ALLOW:
			c.Mode = Allow
		case quoratev1.FailureMode_FAILURE_MODE_LOCAL:
			c.Mode, c.LocalMax = Local, min(in.GetLocalLimit(), policy.MaxLimit)
			c.LocalWindowNanos = int64(in.GetLocalWindow().AsDuration())
		case quoratev1.FailureMode_FAILURE_MODE_DENY, quoratev1.FailureMode_FAILURE_MODE_UNSPECIFIED:
		}
		if c.Mode == Local && (c.LocalMax <= 0 || c.LocalWindowNanos <= 0) {
			c.Mode = Deny
		}
		classes = append(classes, c)
	}
	return newSet(revision, version, classes)
}

// FromPolicy makes a set of a policy file. Its revision is 0.
func FromPolicy(p *policy.Policy) *Set {
	var classes []*Class
	for _, name := range append([]string{policy.DefaultClass}, p.ClassNames()...) {
		_, in := p.ClassOf(name)
		c := &Class{
			Name: name, Timeout: time.Duration(in.TimeoutNanos), Horizon: time.Duration(in.ReplayHorizonNanos),
			Disabled: in.Disabled,
		}
		switch in.OnUnavailable {
		case policy.FailAllow:
			c.Mode = Allow
		case policy.FailLocal:
			c.Mode, c.LocalMax, c.LocalWindowNanos = Local, in.LocalLimit.Max, in.LocalLimit.WindowNanos
		case policy.FailDeny:
		}
		classes = append(classes, c)
	}
	return newSet(0, p.Version, classes)
}

// Inherit has the classes go on counting where those of the same name in old are. It is called once, before the set is
// used.
func (s *Set) Inherit(old *Set) {
	for name, c := range s.classes {
		if before := old.classes[name]; before != nil {
			c.Counters = before.Counters
		}
	}
}

// Of is the class that counts for a name: default, when it is not listed.
func (s *Set) Of(name string) *Class {
	if c := s.classes[name]; c != nil {
		return c
	}
	return s.other
}

// Each calls f with every class.
func (s *Set) Each(f func(*Class)) {
	for _, c := range s.classes {
		f(c)
	}
}
