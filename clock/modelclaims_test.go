package clock_test

import (
	"fmt"
	"math"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// The one limit of the model.
const (
	modelMax         = 3
	modelWindowNanos = 10_000_000_000
	// grainNanos is how far two stamps can be apart beyond the span between them, because each is
	// rounded down to a whole nanosecond.
	grainNanos = 1
)

// The claims that a model can break.
const (
	claimOffset    = "offset"    // of a stamp that became partition time
	claimAdmission = "admission" // two admissions are further apart in partition time than in truth
	claimCap       = "cap"       // too many admissions in a true window, each taken at its instant
	claimCertain   = "certain"   // as cap, whichever instants between arrival and commit are taken
	claimInstant   = "instant"   // an admission's instant is not between its arrival and its commit
)

// admission is one allowed check, in true time.
type admission struct {
	arrived, instant, committed int64
}

// claims watches the committed log with the true instants that only the model knows.
//
// The instant of an admission is the one at which its batch's stamp was drawn. That lies between the
// arrival of the check, which had to be in the batch before (T4), and the commit, and it is the instant
// to which the proof applies: with O never growing along the log, two admissions that are W apart by
// their stamps were drawn at least W apart. Where an entry took over the time of the entry before it,
// the instant of that stamp is taken if it is later, and where a check arrived after its stamp was
// drawn, which T4 forbids, its arrival is: no earlier instant was the check's.
type claims struct {
	time      int64 // partition time
	source    int64 // true instant of the stamp that became it
	offset    int64 // the least so far, of stamps
	admitted  int64 // the least so far, of admissions
	principal map[string][]admission

	broken    map[string]string // claim → what broke it first
	saturated int               // denials, each by a full window
	tight     int               // admissions within 2 % of where the cap would be broken
	clamped   int               // entries that took over the time before them
}

func newClaims() *claims {
	return &claims{
		offset: math.MaxInt64, admitted: math.MaxInt64,
		principal: map[string][]admission{}, broken: map[string]string{},
	}
}

func (c *claims) breaks(claim, format string, args ...any) {
	if c.broken[claim] == "" {
		c.broken[claim] = fmt.Sprintf(format, args...)
	}
}

// committed takes an entry that was committed at a true instant, with its answers.
func (c *claims) committed(e *entry, a *fsm.Answers, now int64) {
	stamp := int64(e.command.Stamp)
	if stamp < c.time {
		c.clamped++
	} else {
		o := stamp - e.drawn
		if o-grainNanos > c.offset {
			c.breaks(claimOffset, "O grows by %.3f s at %.3f s", seconds(o-c.offset), seconds(now))
		}
		c.offset = min(c.offset, o)
		c.source = e.drawn
	}
	c.time = int64(a.Time)
	for i := range a.Decisions {
		switch a.Decisions[i].Reason {
		case fsm.ReasonAllowed:
			c.admit(e, &e.checks[i], now)
		case fsm.ReasonQuotaExhausted:
			c.saturated++
		default:
			panic(fmt.Sprintf("a check was answered with %s", a.Decisions[i].Reason))
		}
	}
}

func (c *claims) admit(e *entry, r *request, now int64) {
	at := max(e.drawn, c.source, r.arrived)
	if at > now {
		c.breaks(claimInstant, "%d is after the commit at %d", at, now)
	}
	o := c.time - at
	if o-grainNanos > c.admitted && c.admitted != math.MaxInt64 {
		c.breaks(claimAdmission, "two admissions are %.3f s closer in truth, at %.3f s",
			seconds(o-c.admitted), seconds(now))
	}
	c.admitted = min(c.admitted, o)

	all := append(c.principal[r.Principal], admission{r.arrived, at, now})
	slices.SortFunc(all, func(a, b admission) int { return int(a.instant - b.instant) })
	c.principal[r.Principal] = all
	for i := range len(all) - modelMax {
		span := all[i+modelMax].instant - all[i].instant
		if span < modelWindowNanos-grainNanos {
			c.breaks(claimCap, "%d admissions within %.3f s", modelMax+1, seconds(span))
		}
		if i == len(all)-modelMax-1 && span < modelWindowNanos*102/100 {
			c.tight++
		}
	}
	within, first := 0, now
	for _, a := range all {
		if a.arrived > now-modelWindowNanos+grainNanos {
			within, first = within+1, min(first, a.arrived)
		}
	}
	if within > modelMax {
		c.breaks(claimCertain, "%d checks arrived and were admitted within %.3f s", within, seconds(now-first))
	}
}

func seconds(nanos int64) float64 { return float64(nanos) / 1e9 }
