package sdk

import "github.com/quorate/quorate/sdk/internal/class"

// ClassStats counts the checks of one class by how they ended. Each check counts once.
type ClassStats struct {
	Allowed     uint64 // by the owner
	Denied      uint64 // by the owner
	Hinted      uint64 // denied from a hint
	Disabled    uint64 // refused here: the class is switched off
	Bypassed    uint64 // let through unverified, by the failure mode allow
	Local       uint64 // let through unverified, by the failure mode local
	LocalDenied uint64 // refused for want of room in the local limit
	Unavailable uint64 // nobody could decide, and the failure mode does not let pass
	Overloaded  uint64 // by the owner, or by this client's bounds
	Refused     uint64 // to be fixed
	Canceled    uint64 // the caller went away, or the client was closed
}

// Stats counts what a client has done since it was made. It is a copy.
type Stats struct {
	// Classes are the classes that the policy lists, and default for all others.
	Classes map[string]ClassStats
	// Sends counts the checks that were handed to a connection for the first time, Retries those sent again.
	Sends, Retries uint64
	// RetriesWithheld counts the retries that the budget did not allow.
	RetriesWithheld uint64
	// Frames counts the frames in which the checks were sent.
	Frames uint64
	// Wasted counts the identities of CheckAll that consumed although their request was refused.
	Wasted uint64
	// NodesGivenUp counts how often a node was given up because it answered nothing.
	NodesGivenUp uint64
	// InFlight is how many checks wait at present, Hints how many hints are kept, LocalHeld how many local admissions
	// are held, Nodes how many nodes are connected.
	InFlight, Hints, LocalHeld, Nodes int
	// WatchLive: the configuration was confirmed a moment ago.
	WatchLive bool
	// WatchError is why the configuration could last not be watched, with the node; empty while it is. Of a cluster other
	// than the client's it says so: a client is of one cluster for its life.
	WatchError string
	// MapVersion and PolicyRevision are of the newest configuration; 0 before the first.
	MapVersion, PolicyRevision uint64
}

// Stats are the counters as they are.
func (c *Client) Stats() Stats {
	set := c.classes.Load()
	s := Stats{
		Classes: map[string]ClassStats{}, Sends: c.nodes.counters.Sends.Load(),
		Retries:         c.nodes.counters.Retries.Load(),
		RetriesWithheld: c.withheld.Load(), Frames: c.nodes.counters.Frames.Load(), Wasted: c.lost.Load(),
		NodesGivenUp: c.nodes.counters.GivenUp.Load(), InFlight: int(c.inFlight.Load()), Hints: c.hints.Len(),
		LocalHeld: c.local.Held(), Nodes: c.nodes.count(), WatchLive: c.watcher.Live(c.now()),
		WatchError: c.watcher.LastError(), PolicyRevision: c.revision.Load(),
	}
	if m := c.table.Map(); m != nil {
		s.MapVersion = m.Version()
	}
	set.Each(func(in *class.Class) { s.Classes[in.Name] = statsOf(in.Counters) })
	return s
}

func statsOf(n *class.Counters) ClassStats {
	return ClassStats{
		Allowed: n[class.Allowed].Load(), Denied: n[class.Denied].Load(), Hinted: n[class.Hinted].Load(),
		Disabled: n[class.Disabled].Load(), Bypassed: n[class.Bypassed].Load(), Local: n[class.LocallyAllowed].Load(),
		LocalDenied: n[class.LocallyDenied].Load(), Unavailable: n[class.Unavailable].Load(),
		Overloaded: n[class.Overloaded].Load(), Refused: n[class.Refused].Load(), Canceled: n[class.Canceled].Load(),
	}
}
