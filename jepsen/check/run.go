package check

import (
	"fmt"
	"math"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

const (
	// maxTold bounds how many violations of a checker are told in full.
	maxTold = 10
	// maxCertificate bounds the steps of a proof.
	maxCertificate = 200
)

// Run judges a run by its directory, with all checkers. An error means that it could not be judged.
func Run(dir string) (*Verdict, error) {
	r, err := load(dir)
	if err != nil {
		return nil, err
	}
	v := &Verdict{
		Passed: true, Run: r.Config.Name, Seed: r.Config.Seed, Mutant: r.Config.Mutant, Counts: r.counts(),
	}
	for _, c := range checkers {
		o := &outcome{Outcome: Outcome{Name: c.name, Invariant: c.invariant, Counts: map[string]int64{}}}
		if c.logless == cannot && r.log == nil {
			o.Skipped = noLogs
		} else if err := c.judge(r, o); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		o.Passed = o.Found == 0
		v.Passed = v.Passed && o.Passed
		if o.Skipped != "" {
			v.NotJudged = append(v.NotJudged, o.Name+": "+o.Skipped)
		}
		if c.logless == partly && r.log == nil && o.Skipped == "" {
			v.NotJudged = append(v.NotJudged, o.Name+": only by what clients saw, since "+noLogs)
		}
		v.Checkers = append(v.Checkers, o.Outcome)
	}
	return v, nil
}

// The logs are what the program traced of what it applied. Without them
const (
	judges = iota // a checker loses nothing
	partly        // a checker judges what clients saw
	cannot        // a checker judges nothing
)

// checkers are all there are, in the order of a verdict.
var checkers = []struct {
	name      string
	invariant string
	logless   int
	judge     func(r *run, o *outcome) error
}{
	{"cap-log", "no rolling window holds more than its limit, by the logs and in their order", cannot, judgeCapLog},
	{"cap-blackbox", "no rolling window holds more than its limit, by what clients saw alone", judges, judgeBlackBox},
	{"stamps", "partition time never runs backwards, and never faster than real time", cannot, judgeStamps},
	{"durability", "what was answered as an allow is in the logs, as that", cannot, judgeDurability},
	{"replay", "a decision id has one decision, and one admission, until its record ends", partly, judgeReplay},
	{"epochs", "the epoch of a slot never goes back", cannot, judgeEpochs},
	{"owner", "one partition owns a slot at a time", cannot, judgeOwner},
	{"policy", "revisions only grow, and none decides once a newer one is active everywhere", partly, judgePolicy},
	{"agreement", "all replicas applied, answered and hold the same at each index", cannot, judgeAgreement},
	{"terms", "each term has one leader, and terms only grow along a log", partly, judgeTerms},
	{"definite", "no denial, and no error that consumes nothing, was an admission", partly, judgeDefinite},
	{"denials", "what was denied for want of room had none", partly, judgeDenials},
	{"waits", "a denial says how long to wait, neither less nor more than until there is room", partly, judgeWaits},
	{"sums", "what answers say is left goes with what was admitted", judges, judgeSums},
	{"liveness", "without faults, and with a core of the nodes, every workload gets decisions", judges, judgeLiveness},
	{"process", "no process ends without a reason, or says what only a defect says", judges, judgeProcess},
	{"vacuity", "the run shows something: allows, denials, full windows, leaders, faults", judges, judgeVacuity},
	{"porcupine", "each decision has an instant in the order of the logs, by a search", cannot, judgeLinear},
}

// noLogs is why something was not judged.
const noLogs = "the program left no trace of what it applied"

// run is a run as the checkers see it.
type run struct {
	*history.Run
	log    *log // nil without
	by     map[idName][]*history.Check
	report *Report // of Examine
	known  *knowledge
}

func load(dir string) (*run, error) {
	from, err := history.Load(dir)
	if err != nil {
		return nil, err
	}
	r := &run{Run: from, by: map[idName][]*history.Check{}, known: learn(from.History.Revisions)}
	for _, c := range r.History.Checks {
		k := idName{c.Principal, c.Gateway, c.ID}
		r.by[k] = append(r.by[k], c)
	}
	if r.log, err = r.readLog(); err != nil {
		return nil, err
	}
	r.report = Examine(&r.History)
	return r, nil
}

// counts is what the run was, in numbers.
func (r *run) counts() map[string]int64 {
	e := r.report
	counts := map[string]int64{
		"attempts": int64(r.Asked), "checks": int64(len(r.History.Checks)), "peeks": int64(len(r.History.Peeks)),
		"admitted": int64(e.Admitted), "denied": int64(e.Denied), "replayed": int64(e.Replayed),
		"unknown": int64(e.Unknown), "full_windows": int64(e.Reached), "revisions": int64(len(r.History.Revisions)),
		"slowest_ms": e.Slowest.Milliseconds(), "files_cut_off": int64(r.Torn),
	}
	if r.log != nil {
		counts["applied_lines"], counts["entries"] = r.log.lines, r.log.entries
		counts["applied_decisions"] = r.log.decisions
	}
	return counts
}

// outcome is an Outcome while it is found.
type outcome struct{ Outcome }

// violated notes a violation.
func (o *outcome) violated(certificate []Item, format string, args ...any) {
	o.Found++
	if len(o.Violations) >= maxTold {
		return
	}
	if more := len(certificate) - maxCertificate; more > 0 {
		certificate = append(certificate[:maxCertificate:maxCertificate], Item{Text: fmt.Sprintf("and %d more", more)})
	}
	o.Violations = append(o.Violations, Violation{fmt.Sprintf(format, args...), certificate})
}

// took notes what Examine found of some kinds.
func (o *outcome) took(report *Report, kinds ...string) {
	for _, kind := range kinds {
		n := report.Violations[kind]
		for _, text := range report.texts[kind] {
			o.violated(nil, "%s", text)
			n--
		}
		o.Found += int64(n)
	}
}

// once is an instant for people.
func once(d time.Duration) string {
	switch {
	case d == history.Never:
		return "never"
	case d <= time.Duration(math.MinInt64/4):
		return "ever"
	}
	return fmt.Sprintf("%.6fs", d.Seconds())
}
