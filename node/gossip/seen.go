package gossip

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// maxNodes bounds the nodes that are known, those that are gone among them.
	maxNodes = 1024
	// forgetAfter is how long a node that is gone is kept at least, when another needs its place.
	forgetAfter = 2 * time.Minute
	// soughtFor is how long a node that is gone is looked for where it was.
	soughtFor = time.Hour
	// conflictLogInterval is how often the same two nodes of one name are logged.
	conflictLogInterval = time.Minute
)

// Seen is what is known of another node.
type Seen struct {
	Meta
	// Alive is false when the node missed its probes or has said that it leaves. It may be wrong either way.
	Alive bool
	// Since is when this node learned that Alive is what it is. It has a monotonic reading: use time.Since.
	Since time.Time
}

// table keeps what memberlist tells of the other nodes, which it does holding its own lock: nothing here may call
// memberlist.
type table struct {
	self   string
	logger *slog.Logger
	// changed has room for one: what is not yet taken stands for all changes since.
	changed chan struct{}

	mu        sync.Mutex // guards the fields below
	closed    bool
	known     map[string]known
	conflict  string    // the last one that was logged
	conflicts time.Time // when
}

type known struct {
	Seen
	at netip.AddrPort // where its packets are sent
}

var (
	_ memberlist.AliveDelegate    = (*table)(nil)
	_ memberlist.EventDelegate    = (*table)(nil)
	_ memberlist.ConflictDelegate = (*table)(nil)
)

func newTable(self string, logger *slog.Logger) *table {
	return &table{self: self, logger: logger, changed: make(chan struct{}, 1), known: make(map[string]known)}
}

// nodes are all but this one, by id.
func (t *table) nodes() []Seen {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := make([]Seen, 0, len(t.known))
	for _, k := range t.known {
		seen = append(seen, k.Seen)
	}
	slices.SortFunc(seen, func(a, b Seen) int { return strings.Compare(a.ID, b.ID) })
	return seen
}

// where tells at which addresses nodes that are alive are, and where those were that went not long ago.
func (t *table) where() (alive map[string]bool, gone []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	alive = make(map[string]bool)
	for _, k := range t.known {
		if k.Alive {
			alive[k.at.String()], alive[k.Gossip] = true, true
		} else if time.Since(k.Since) < soughtFor {
			gone = append(gone, k.at.String())
		}
	}
	return alive, gone
}

// close makes the table deaf: timers of memberlist's may go off after its end.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

var errFull = fmt.Errorf("%d nodes are known already", maxNodes)

// NotifyAlive refuses nodes whose description or address is not sound, and those for which there is no room.
func (t *table) NotifyAlive(n *memberlist.Node) error {
	if n.Name == t.self {
		return nil // memberlist compares it with what this node says of itself
	}
	if _, _, err := describe(n); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.known[n.Name]; ok || len(t.known) < maxNodes {
		return nil
	}
	if oldest, ok := t.longestGone(); ok && time.Since(t.known[oldest].Since) > forgetAfter {
		return nil
	}
	return errFull
}

var errAddress = errors.New("not an address of a node")

// describe reads what a node says about itself, and its address.
func describe(n *memberlist.Node) (Meta, netip.AddrPort, error) {
	m, err := decodeMeta(n.Name, n.Meta)
	if err != nil {
		return m, netip.AddrPort{}, err
	}
	ip, ok := netip.AddrFromSlice(n.Addr)
	ip = ip.Unmap()
	if !ok || n.Port == 0 || ip.IsUnspecified() || ip.IsMulticast() {
		return m, netip.AddrPort{}, errAddress
	}
	return m, netip.AddrPortFrom(ip, n.Port), nil
}

// longestGone is the node that has been gone for the longest time.
func (t *table) longestGone() (id string, ok bool) {
	for name, k := range t.known {
		if !k.Alive && (!ok || k.Since.Before(t.known[id].Since)) {
			id, ok = name, true
		}
	}
	return id, ok
}

// NotifyJoin takes in a node that was not known or was gone.
func (t *table) NotifyJoin(n *memberlist.Node) { t.take(n, true) }

// NotifyUpdate takes in what a node now says about itself.
func (t *table) NotifyUpdate(n *memberlist.Node) { t.take(n, true) }

// NotifyLeave marks a node as gone.
func (t *table) NotifyLeave(n *memberlist.Node) { t.take(n, false) }

func (t *table) take(n *memberlist.Node, alive bool) {
	if n.Name == t.self {
		return
	}
	m, at, err := describe(n)
	if err != nil {
		return // NotifyAlive refused it
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	before, ok := t.known[m.ID]
	if !ok && len(t.known) >= maxNodes {
		oldest, gone := t.longestGone()
		if !gone {
			return
		}
		delete(t.known, oldest)
	}
	now := known{Seen: Seen{Meta: m, Alive: alive, Since: before.Since}, at: at}
	if !ok || before.Alive != alive {
		now.Since = time.Now()
		message := "a node is seen"
		if !alive {
			message = "a node is not seen any more"
		}
		t.logger.Info(message, "peer", m.ID, "instance", m.Instance, "gossip", at)
	} else if before.Instance != m.Instance {
		t.logger.Info("a node runs on another data directory", "peer", m.ID,
			"instance", m.Instance, "before", before.Instance)
	}
	t.known[m.ID] = now
	if now != before {
		t.tell()
	}
}

// tell says that there is something new. t.mu is held.
func (t *table) tell() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// NotifyConflict logs that a second node uses the name of one that is up.
func (t *table) NotifyConflict(existing, other *memberlist.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	conflict := fmt.Sprint(existing.Name, existing.Address(), other.Address())
	if t.closed || conflict == t.conflict && time.Since(t.conflicts) < conflictLogInterval {
		return
	}
	t.conflict, t.conflicts = conflict, time.Now()
	t.logger.Warn("two nodes have the same id: stop one, or give it an id of its own",
		"id", existing.Name, "taken", existing.Address(), "refused", other.Address())
}
