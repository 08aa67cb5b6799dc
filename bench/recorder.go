package bench

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// maxLatency is the longest that is told apart; what took longer counts as this.
	maxLatency = 5 * time.Minute
	// digits is how exactly latencies are kept: three decimal digits.
	digits = 3
	// numShards is how many workers can record at once.
	numShards = 16
)

// newHistogram holds microseconds.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, maxLatency.Microseconds(), digits)
}

// record notes a duration, rounded up to a microsecond.
func record(h *hdrhistogram.Histogram, d time.Duration) {
	us := int64((max(d, 0) + time.Microsecond - 1) / time.Microsecond)
	_ = h.RecordValue(min(max(us, 1), maxLatency.Microseconds())) // within bounds it cannot fail
}

// recorder collects what was measured.
type recorder struct {
	// from and to bound what counts: by the instant at which a check was due, else by that at which it was answered.
	from, to time.Time
	byDue    bool
	// watched: somebody asks for recentP99.
	watched bool
	shards  [numShards]shard
}

// shard is the part of one in numShards workers.
type shard struct {
	mu       sync.Mutex // guards the rest
	latency  *hdrhistogram.Histogram
	lag      *hdrhistogram.Histogram // of the sending behind the due instant
	recent   *hdrhistogram.Histogram // since the last progress
	outcomes [numOutcomes]uint64
	ended    uint64    // all that ended, for the progress
	last     time.Time // the latest answer
	refilled uint64
	err      error // the first
	_        [64]byte
}

func newRecorder(from, to time.Time, byDue bool) *recorder {
	r := &recorder{from: from, to: to, byDue: byDue}
	for i := range r.shards {
		r.shards[i] = shard{latency: newHistogram(), lag: newHistogram(), recent: newHistogram()}
	}
	return r
}

// event is one check.
type event struct {
	due, sent, answered time.Time
	outcome             Outcome
	exhausted           bool // of the exhausted share
	err                 error
}

func (r *recorder) add(worker int, e *event) {
	s := &r.shards[worker%numShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended++
	took := e.answered.Sub(e.due)
	if r.watched {
		record(s.recent, took)
	}
	at := e.answered
	if r.byDue {
		at = e.due
	}
	if at.Before(r.from) || !at.Before(r.to) {
		return
	}
	record(s.latency, took)
	if r.byDue { // a closed loop sends when it is due
		record(s.lag, e.sent.Sub(e.due))
	}
	s.outcomes[e.outcome]++
	if e.answered.After(s.last) {
		s.last = e.answered
	}
	if e.exhausted && e.outcome == Allowed {
		s.refilled++
	}
	if s.err == nil {
		s.err = e.err
	}
}

// total is the sum of all shards.
func (r *recorder) total() *shard {
	sum := &shard{latency: newHistogram(), lag: newHistogram()}
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		sum.latency.Merge(s.latency)
		sum.lag.Merge(s.lag)
		for o, n := range s.outcomes {
			sum.outcomes[o] += n
		}
		if s.last.After(sum.last) {
			sum.last = s.last
		}
		sum.refilled += s.refilled
		if sum.err == nil {
			sum.err = s.err
		}
		s.mu.Unlock()
	}
	return sum
}

// ended is how many ended so far.
func (r *recorder) ended() (n uint64) {
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		n += s.ended
		s.mu.Unlock()
	}
	return n
}

// recentP99 is the 99th percentile since it was last asked for.
func (r *recorder) recentP99() time.Duration {
	sum := newHistogram()
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		sum.Merge(s.recent)
		s.recent.Reset()
		s.mu.Unlock()
	}
	return time.Duration(sum.ValueAtQuantile(99)) * time.Microsecond
}
