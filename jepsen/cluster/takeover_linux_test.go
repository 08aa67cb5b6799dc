package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// takeover is how a partition got its next leader: instants from the kill of the last one on. Those of the nodes' logs
// are milliseconds, rounded down.
type takeover struct {
	at            time.Duration // of the kill, in the history
	killed, leads string
	noticed       time.Duration // a replica had heard nothing for long enough
	agreed        time.Duration // the other had, too: until then it votes for nobody
	won           time.Duration // the leader was elected
	began         time.Duration // it had applied an entry of its own term, and decided
	allowed       time.Duration // the first allow was answered
	candidacies   int           // until then
}

func (t takeover) String() string {
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("%s killed, noticed after %v and by both after %v, %s elected after %v by %d candidacies, "+
		"leads after %v, first allow after %v",
		t.killed, ms(t.noticed), ms(t.agreed), t.leads, ms(t.won), t.candidacies, ms(t.began), ms(t.allowed))
}

// spans are times in order, the shortest first.
type spans []time.Duration

// at is the percentile by nearest rank: the shortest time that so many per cent do not exceed.
func (s spans) at(percent float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	return s[max(1, int(math.Ceil(percent/100*float64(len(s)))))-1]
}

func (s spans) String() string {
	ms := func(percent float64) time.Duration { return s.at(percent).Round(time.Millisecond) }
	return fmt.Sprintf("%d kills: min %v, median %v, p90 %v, p99 %v, max %v",
		len(s), ms(0), ms(50), ms(90), ms(99), ms(100))
}

// part is what one part of the takeovers took.
type part struct {
	what string
	took spans
}

// partsOf are the whole and the parts, from the kill on.
func partsOf(takeovers []takeover) []part {
	collect := func(of func(takeover) time.Duration) spans {
		var s spans
		for _, t := range takeovers {
			s = append(s, of(t))
		}
		slices.Sort(s)
		return s
	}
	return []part{
		{"from the kill to the first allow", collect(func(t takeover) time.Duration { return t.allowed })},
		{"from the kill until one notices", collect(func(t takeover) time.Duration { return t.noticed })},
		{"from there until both have", collect(func(t takeover) time.Duration { return t.agreed - t.noticed })},
		{"from there until a leader is elected", collect(func(t takeover) time.Duration { return t.won - t.agreed })},
		{"from there until it leads", collect(func(t takeover) time.Duration { return t.began - t.won })},
		{"from there to the first allow", collect(func(t takeover) time.Duration { return t.allowed - t.began })},
	}
}

func firstAllows(takeovers []takeover) spans { return partsOf(takeovers)[0].took }

// marks are where the nodes' logs end.
func (c *Cluster) marks() (map[string]int64, error) {
	marks := map[string]int64{}
	for _, n := range c.Nodes {
		info, err := os.Stat(n.Log)
		if err != nil {
			return nil, err
		}
		marks[n.ID] = info.Size()
	}
	return marks, nil
}

// turn is a line of a log that tells of an election.
type turn struct {
	at         time.Time
	node, what string
	term       string
}

// The messages that tell of an election. The last is the owner's, the others are Raft's.
const (
	saidTimeout   = "heartbeat timeout reached, starting election"
	saidCandidate = "entering candidate state"
	saidWon       = "election won"
	saidLeads     = "leadership began"
)

// saysTurn finds such lines. Raft names the partition as a group.
var saysTurn = regexp.MustCompile(`(?m)^time=(\S+) .*msg="?(` + strings.Join(
	[]string{saidTimeout, saidCandidate, saidWon, saidLeads}, "|") + `)"? .*\b(?:group|partition)=(\S+)(?:.* term=(\d+))?`)

// turnsIn are what a log tells of a group's elections.
func turnsIn(text, node, group string) (turns []turn, err error) {
	for _, found := range saysTurn.FindAllStringSubmatch(text, -1) {
		if found[3] != group {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, found[1])
		if err != nil {
			return nil, err
		}
		turns = append(turns, turn{at, node, found[2], found[4]})
	}
	return turns, nil
}

// turnsSince are what the logs but that of one node tell of a group's elections after marks, in order.
func (c *Cluster) turnsSince(marks map[string]int64, but, group string) (turns []turn, err error) {
	for _, n := range c.Nodes {
		if n.ID == but {
			continue
		}
		f, err := os.Open(n.Log)
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(io.NewSectionReader(f, marks[n.ID], math.MaxInt64-marks[n.ID]))
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		own, err := turnsIn(string(text), n.ID, group)
		if err != nil {
			return nil, err
		}
		turns = append(turns, own...)
	}
	slices.SortStableFunc(turns, func(a, b turn) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	return turns, nil
}

// takeoverOf is what the logs of the others tell of a group's takeover after a node was killed at an instant. allowed
// is how long after that the first allow was answered.
func (c *Cluster) takeoverOf(
	group, killed string, marks map[string]int64, at time.Time, allowed time.Duration,
) (takeover, error) {
	turns, err := c.turnsSince(marks, killed, group)
	if err != nil {
		return takeover{}, err
	}
	return readTakeover(turns, takeover{killed: killed, allowed: allowed}, at)
}

// readTakeover completes a takeover by the turns that led to it.
func readTakeover(turns []turn, t takeover, killed time.Time) (takeover, error) {
	term := ""
	for _, turn := range turns {
		if turn.what == saidLeads && turn.at.Sub(killed) <= t.allowed {
			t.leads, t.began, term = turn.node, turn.at.Sub(killed), turn.term
		}
	}
	if t.leads == "" {
		return t, fmt.Errorf("no log tells of a leader between the kill of %s and the first allow, %v after: "+
			"it did not lead", t.killed, t.allowed)
	}
	t.noticed, t.won = history.Never, history.Never
	aware := map[string]bool{}
	for _, turn := range turns {
		switch after := turn.at.Sub(killed); {
		case after > t.began:
		case turn.what == saidTimeout && !aware[turn.node]:
			aware[turn.node] = true
			t.noticed, t.agreed = min(t.noticed, after), max(t.agreed, after)
		case turn.what == saidCandidate:
			t.candidacies++
		case turn.what == saidWon && turn.node == t.leads && turn.term == term:
			t.won = after
		}
	}
	if t.noticed == history.Never || t.won == history.Never {
		return t, fmt.Errorf("the logs do not tell how %s was elected in term %s after the kill of %s",
			t.leads, term, t.killed)
	}
	return t, nil
}

// TestTakeover shows that a takeover is read from the logs of two nodes by the leadership that led to the first allow,
// whatever other groups, earlier candidates and later leaders there were, and that a node that did not lead is found
// out.
func TestTakeover(t *testing.T) {
	const n1 = `time=2026-11-30T08:47:36.900Z level=WARN msg="heartbeat timeout reached, starting election" group=control
time=2026-11-30T08:47:37.100Z level=WARN msg="heartbeat timeout reached, starting election" node=n1 group=p0 logger=raft
time=2026-11-30T08:47:37.101Z level=INFO msg="entering candidate state" node=n1 group=p0 node="Node at [Candidate]" term=7
a line that is not of the log
time=2026-11-30T08:47:38.250Z level=WARN msg="heartbeat timeout reached, starting election" node=n1 group=p0 logger=raft
time=2026-11-30T08:47:38.300Z level=INFO msg="election won" node=n1 group=p0 logger=raft term=8 tally=2
time=2026-11-30T08:47:38.310Z level=INFO msg="leadership began" node=n1 partition=p0 term=8
time=2026-11-30T08:47:39.000Z level=INFO msg="leadership began" node=n1 partition=p0 term=11
`
	const n2 = `time=2026-11-30T08:47:37.500Z level=WARN msg="heartbeat timeout reached, starting election" group=p0
time=2026-11-30T08:47:37.501Z level=INFO msg="entering candidate state" node=n2 group=p0 logger=raft term=7
time=2026-11-30T08:47:37.600Z level=INFO msg="election won" node=n2 group=p0 logger=raft term=7 tally=2
`
	killed := time.Date(2026, 11, 30, 8, 47, 36, 0, time.UTC)
	var turns []turn
	for node, text := range map[string]string{"n1": n1, "n2": n2} {
		own, err := turnsIn(text, node, "p0")
		must(t, err)
		turns = append(turns, own...)
	}
	got, err := readTakeover(turns, takeover{killed: "n0", allowed: 2500 * time.Millisecond}, killed)
	must(t, err)
	want := takeover{
		killed: "n0", leads: "n1", noticed: 1100 * time.Millisecond, agreed: 1500 * time.Millisecond,
		won: 2300 * time.Millisecond, began: 2310 * time.Millisecond, allowed: 2500 * time.Millisecond, candidacies: 2,
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, err := readTakeover(turns, takeover{killed: "n0", allowed: 2 * time.Second}, killed); err == nil {
		t.Errorf("there was an allow before anybody led, and that is read as %v", got)
	}
}

// TestSpans shows that percentiles are those by nearest rank: of 50 the 99th is the longest, of 101 it is not.
func TestSpans(t *testing.T) {
	up := func(n int) (s spans) {
		for k := range n {
			s = append(s, time.Duration(k+1))
		}
		return s
	}
	for _, c := range []struct {
		n       int
		percent float64
		want    time.Duration
	}{{50, 0, 1}, {50, 50, 25}, {50, 90, 45}, {50, 99, 50}, {50, 100, 50}, {101, 99, 100}, {1, 50, 1}, {0, 99, 0}} {
		if got := up(c.n).at(c.percent); got != c.want {
			t.Errorf("the percentile %v of 1 to %d is %d, want %d", c.percent, c.n, got, c.want)
		}
	}
}
