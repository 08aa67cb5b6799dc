package netns

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/process"
)

const (
	// maxWaiting is how many packets wait in a line at most, and maxWaitingBytes how large they are together.
	maxWaiting      = 4096
	maxWaitingBytes = 4 << 20
	// never is when a packet is due that is held.
	never = time.Duration(math.MaxInt64)
)

// Counts are packets that were sent over one direction of a link since the beginning. One that was late or held and
// has arrived counts as carried too.
type Counts struct {
	Carried    int64 // that arrived, duplicates among them
	Dropped    int64 // lost: by the condition, or since the other end took none
	Delayed    int64
	Held       int64
	Overflowed int64 // dropped since too many were waiting
	Duplicated int64
}

// Stopped is how often something was stopped, or was late.
func (c Counts) Stopped() int64 { return c.Dropped + c.Delayed + c.Held + c.Overflowed }

// line is one direction between two namespaces. Packets arrive in order, unless the condition has jitter.
type line struct {
	write func([]byte) error // hands a packet over to the other end
	begun time.Time
	wake  chan struct{} // holds one when the first packet that waits is another than before

	mu        sync.Mutex // guards the fields below
	condition process.Condition
	cut       bool
	waiting   packets
	bytes     int // of those that wait
	sent      uint64
	counts    Counts
}

// packet waits in a line.
type packet struct {
	due   time.Duration // since the line began
	order uint64
	text  []byte
}

// packets is a heap, the one that is due first at its top.
type packets []packet

func (p packets) Len() int      { return len(p) }
func (p packets) Swap(i, k int) { p[i], p[k] = p[k], p[i] }
func (p packets) Less(i, k int) bool {
	return p[i].due < p[k].due || p[i].due == p[k].due && p[i].order < p[k].order
}

// Push adds a packet.
func (p *packets) Push(x any) { *p = append(*p, x.(packet)) }

// Pop takes the last one.
func (p *packets) Pop() any {
	last := len(*p) - 1
	x := (*p)[last]
	(*p)[last] = packet{}
	*p = (*p)[:last]
	return x
}

func newLine(write func([]byte) error) *line {
	return &line{write: write, begun: time.Now(), wake: make(chan struct{}, 1)}
}

func (l *line) now() time.Duration { return time.Since(l.begun) }

// send has a packet carried. It does not keep text.
func (l *line) send(text []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.carry(text)
	if p := l.condition.Duplicate; p > 0 && !l.cut && !l.condition.Drop && rand.Float64() < p {
		l.counts.Duplicated++
		l.carry(text)
	}
}

// carry carries a packet as the condition says. It needs mu.
func (l *line) carry(text []byte) {
	c, due := &l.condition, l.now()
	switch {
	case l.cut || c.Drop || c.Loss > 0 && rand.Float64() < c.Loss:
		l.counts.Dropped++
		return
	case c.Hold:
		l.counts.Held++
		due = never
	case c.Delay > 0 || c.Jitter > 0:
		l.counts.Delayed++
		due += c.Delay
		if c.Jitter > 0 {
			due += rand.N(c.Jitter)
		}
	case len(l.waiting) == 0:
		l.deliver(text)
		return
	}
	if len(l.waiting) >= maxWaiting || l.bytes+len(text) > maxWaitingBytes {
		l.counts.Overflowed++
		return
	}
	l.sent++
	heap.Push(&l.waiting, packet{due: due, order: l.sent, text: slices.Clone(text)})
	l.bytes += len(text)
	if l.waiting[0].order == l.sent {
		l.rouse()
	}
}

// deliver hands a packet over. It needs mu, so that nothing arrives any more once a line is told to drop.
func (l *line) deliver(text []byte) {
	if err := l.write(text); err != nil {
		l.counts.Dropped++ // the other end is closed, or takes no more
		return
	}
	l.counts.Carried++
}

// flush delivers what is due. It needs mu.
func (l *line) flush() {
	for now := l.now(); len(l.waiting) > 0 && l.waiting[0].due <= now; {
		p := heap.Pop(&l.waiting).(packet)
		l.bytes -= len(p.text)
		l.deliver(p.text)
	}
}

func (l *line) rouse() {
	select {
	case l.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// set changes the condition.
func (l *line) set(c process.Condition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.condition = c
	l.adapt()
}

// setCut has nothing pass, whatever the condition, or ends that.
func (l *line) setCut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	l.adapt()
}

// adapt has what waits comply with the condition: nothing that is dropped now arrives, what is held now waits, and
// else nothing comes later than if it were sent now. It needs mu.
func (l *line) adapt() {
	switch now := l.now(); {
	case l.cut || l.condition.Drop:
		l.counts.Dropped += int64(len(l.waiting))
		l.waiting, l.bytes = nil, 0
	case l.condition.Hold:
		for i := range l.waiting {
			if p := &l.waiting[i]; p.due != never {
				p.due = never
				l.counts.Held++
			}
		}
		heap.Init(&l.waiting)
	default:
		for i := range l.waiting {
			l.waiting[i].due = min(l.waiting[i].due, now+l.condition.Delay)
		}
		heap.Init(&l.waiting)
		l.flush()
	}
	l.rouse()
}

// count is what the line did so far.
func (l *line) count() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts
}

// next delivers what is due, and returns how long it is until something else will be.
func (l *line) next() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
	if len(l.waiting) == 0 || l.waiting[0].due == never {
		return never
	}
	return l.waiting[0].due - l.now()
}

// run delivers what waits when it is due, until closing is closed.
func (l *line) run(closing <-chan struct{}) {
	timer := time.NewTimer(never)
	defer timer.Stop()
	for {
		timer.Reset(l.next())
		select {
		case <-closing:
			return
		case <-l.wake:
		case <-timer.C:
		}
	}
}
