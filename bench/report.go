package bench

import (
	"errors"
	"fmt"
	"time"
)

// Report is what a load came to. Its JSON is for programs: fields are added, not changed.
type Report struct {
	Mode string `json:"mode"` // closed or open
	// What was asked for.
	Clients        int     `json:"clients"` // at most that many checks are under way
	RatePerS       float64 `json:"rate_per_s,omitempty"`
	Keys           int     `json:"keys"`
	ZipfS          float64 `json:"zipf_s"`
	ExhaustedShare float64 `json:"exhausted_share"`
	Class          string  `json:"class,omitempty"`
	Connections    int     `json:"connections,omitempty"`
	Hints          bool    `json:"hints"`
	// How long was measured, warm-up aside.
	WarmUpS  float64 `json:"warm_up_s"`
	ElapsedS float64 `json:"elapsed_s"`
	// DecisionsPerS counts what was allowed, denied and hinted.
	DecisionsPerS float64 `json:"decisions_per_s"`
	// Latencies of all checks, failed ones too, in microseconds. In an open loop they run from when a check was due.
	P50Us  int64 `json:"p50_us"`
	P90Us  int64 `json:"p90_us"`
	P99Us  int64 `json:"p99_us"`
	P999Us int64 `json:"p999_us"`
	MaxUs  int64 `json:"max_us"`
	// SendLagP99Us is how late checks were sent, of an open loop: by the generator's own coarseness, or for want of a
	// free client.
	SendLagP99Us int64 `json:"send_lag_p99_us,omitempty"`
	// How the checks ended. Allowed and Denied are the service's decisions; Overloaded is a part of Unavailable.
	Allowed     uint64 `json:"allowed"`
	Denied      uint64 `json:"denied"`
	Hinted      uint64 `json:"hinted"`
	Bypassed    uint64 `json:"bypassed"`
	Unavailable uint64 `json:"unavailable"`
	Overloaded  uint64 `json:"overloaded"`
	Errors      uint64 `json:"errors"`
	// Refilled counts the allows of keys of the exhausted share: their allowance came back.
	Refilled uint64 `json:"refilled,omitempty"`
	// What the client counted.
	Retries         uint64  `json:"retries"`
	RetriesWithheld uint64  `json:"retries_withheld"`
	ChecksPerFrame  float64 `json:"checks_per_frame,omitempty"`
	// Processors' time per decision: of this process, and of the processes that were named.
	ClientCPUUs float64 `json:"client_cpu_us_per_decision"`
	NodesCPUUs  float64 `json:"nodes_cpu_us_per_decision,omitempty"`
	// Interrupted: it was ended before its time.
	Interrupted bool `json:"interrupted"`
	// FirstError is the first failure's reason.
	FirstError string `json:"first_error,omitempty"`
}

// ErrNothingMeasured is the error of a load that was ended before the warm-up was over.
var ErrNothingMeasured = errors.New("ended before the warm-up was over: nothing was measured")

// Decisions is how many checks were decided.
func (r *Report) Decisions() uint64 { return r.Allowed + r.Denied + r.Hinted }

// Checks is how many checks were measured.
func (r *Report) Checks() uint64 { return r.Decisions() + r.Bypassed + r.Unavailable + r.Errors }

// usage is what was used up to an instant.
type usage struct {
	own, nodes time.Duration
	counters   Counters
}

// usage is what this process, the nodes and the client's counters have come to.
func (l *Load) usage() (u usage, err error) {
	if u.own, err = OwnCPU(); err != nil {
		return u, err
	}
	for _, pid := range l.PIDs {
		used, err := CPU(pid)
		if err != nil {
			return u, err
		}
		u.nodes += used
	}
	if c, ok := l.Target.(Counting); ok {
		u.counters = c.Counters()
	}
	return u, nil
}

// report puts together what was recorded until end, with what was used from the first to the last usage.
func (l *Load) report(r *recorder, end time.Time, first, last usage) *Report {
	sum := r.total()
	out := &Report{
		Mode: "closed", Clients: l.Clients, RatePerS: l.RatePerS, Keys: l.Keys.N, ZipfS: l.Keys.ZipfS,
		ExhaustedShare: l.Keys.ExhaustedShare, WarmUpS: l.WarmUp.Seconds(), Interrupted: end.Before(r.to),
	}
	if r.byDue {
		out.Mode = "open"
		out.SendLagP99Us = sum.lag.ValueAtQuantile(99)
	}
	if sum.last.After(end) { // of an open loop, or after an interruption
		end = sum.last
	}
	out.fill(sum, end.Sub(r.from))
	counted := last.counters.since(first.counters)
	out.Retries, out.RetriesWithheld = counted.Retries, counted.RetriesWithheld
	if counted.Frames > 0 {
		out.ChecksPerFrame = round(float64(counted.Sends+counted.Retries)/float64(counted.Frames), 1)
	}
	if n := float64(out.Decisions()); n > 0 {
		out.ClientCPUUs = round((last.own-first.own).Seconds()*1e6/n, 2)
		out.NodesCPUUs = round((last.nodes-first.nodes).Seconds()*1e6/n, 2)
	}
	return out
}

// fill enters the sum of what was recorded in a time.
func (r *Report) fill(sum *shard, elapsed time.Duration) {
	r.ElapsedS = round(elapsed.Seconds(), 3)
	h := sum.latency
	r.P50Us, r.P90Us, r.P99Us = h.ValueAtQuantile(50), h.ValueAtQuantile(90), h.ValueAtQuantile(99)
	r.P999Us, r.MaxUs = h.ValueAtQuantile(99.9), h.Max()
	o := &sum.outcomes
	r.Allowed, r.Denied, r.Hinted, r.Bypassed = o[Allowed], o[Denied], o[Hinted], o[Bypassed]
	r.Overloaded, r.Unavailable, r.Errors = o[Overloaded], o[Unavailable]+o[Overloaded], o[Failed]
	r.Refilled = sum.refilled
	if sum.err != nil {
		r.FirstError = sum.err.Error()
	}
	if elapsed > 0 {
		r.DecisionsPerS = round(float64(r.Decisions())/elapsed.Seconds(), 1)
	}
}

// Advice says what in the report makes it mean less than it seems to, and what to do; empty when nothing does.
func (r *Report) Advice() (out []string) {
	share := func(n uint64) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(max(1, r.Checks()))) }
	switch {
	case r.Overloaded > 0 && r.Overloaded == r.Unavailable:
		out = append(out, share(r.Overloaded)+" of the checks met a bound of the client or the owner: use fewer clients")
	case r.Unavailable > 0:
		out = append(out, share(r.Unavailable)+" of the checks got no decision: look at the first error; if it is time, "+
			"lower the load, or give the class a longer timeout")
	}
	if r.Bypassed > 0 {
		out = append(out, share(r.Bypassed)+" of the checks were let through by the class's failure mode, not decided")
	}
	if r.Errors > 0 {
		out = append(out, share(r.Errors)+" of the checks failed: look at the first error")
	}
	if r.Refilled > 0 {
		out = append(out, fmt.Sprintf("%d checks of exhausted keys were allowed: use a class whose window is longer than "+
			"the run", r.Refilled))
	}
	if r.ExhaustedShare == 0 && 2*(r.Denied+r.Hinted) > r.Checks() {
		out = append(out, share(r.Denied+r.Hinted)+" of the checks were denied: for allows use more --keys, or a class "+
			"with more room")
	}
	if r.Mode == "open" && !r.Interrupted && r.DecisionsPerS < 0.95*r.RatePerS {
		out = append(out, fmt.Sprintf("%.0f/s were due, and %.0f/s were decided: the latencies are those of a growing "+
			"queue", r.RatePerS, r.DecisionsPerS))
	}
	return out
}
