package capacity

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Need is the load that a cluster is planned for.
type Need struct {
	// RPS are the checks per second of all gateways, and DeniedShare the part of them that is denied.
	RPS         float64 `json:"rps"`
	DeniedShare float64 `json:"denied_share"`
	// HintedShare is the part of the denied checks that gateways answer from deny hints, so that no owner sees them.
	HintedShare float64 `json:"hinted_share"`
	// Principals have admissions within the window.
	Principals float64 `json:"principals"`
	// Limit is how much of Window is allowed to each.
	Limit  float64       `json:"limit"`
	Window time.Duration `json:"window_ns"`
	// ReplayHorizon is how long a decision is remembered by its id.
	ReplayHorizon time.Duration `json:"replay_horizon_ns"`
	// Cores are those of a node.
	Cores int `json:"cores"`
}

// Validate reports all that is wrong.
func (n *Need) Validate() error {
	var errs []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	share := func(v float64) bool { return v >= 0 && v <= 1 }
	must(n.RPS > 0 && n.RPS <= 1e12, "%v checks per second: give a number above 0", n.RPS)
	must(n.Principals >= 1 && n.Principals <= 1e15, "%v principals: give 1 or more", n.Principals)
	must(n.Limit >= 1 && n.Limit <= 1<<53, "a limit of %v: give 1 to 2^53", n.Limit)
	must(n.Window >= time.Millisecond && n.Window <= 366*24*time.Hour, "a window of %s: give 1ms to 366d", n.Window)
	must(n.ReplayHorizon >= time.Second && n.ReplayHorizon <= 15*time.Minute, "a replay horizon of %s: give 1s to 15m",
		n.ReplayHorizon)
	must(share(n.DeniedShare) && share(n.HintedShare), "shares of %v denied and %v hinted: give 0 to 1", n.DeniedShare,
		n.HintedShare)
	must(n.Cores >= 1 && n.Cores <= 1024, "%d cores per node: give 1 to 1024", n.Cores)
	return errors.Join(errs...)
}

// Plan is what a need comes to.
type Plan struct {
	Need Need `json:"need"`
	// OwnerRPS are the checks per second that owners decide, AllowedRPS those of them that are allowed.
	OwnerRPS   float64 `json:"owner_rps"`
	AllowedRPS float64 `json:"allowed_rps"`
	// CappedRPS are allows that limit and principals do not admit: the denied share is larger than was said.
	CappedRPS float64 `json:"capped_rps"`
	Owners    int     `json:"owners"`
	OwnersFor string  `json:"owners_for"` // what asks for that many
	Nodes     int     `json:"nodes"`
	NodesFor  string  `json:"nodes_for"`
	// What all nodes together use.
	NodeCores    float64 `json:"node_cores"`
	GatewayCores float64 `json:"gateway_cores"`
	// PairsPerKey are the instants that a principal's admissions are kept at.
	PairsPerKey float64 `json:"pairs_per_key"`
	// Memory of the whole cluster, all replicas, and of a node.
	KeyMemoryBytes    float64 `json:"key_memory_bytes"`
	RecordMemoryBytes float64 `json:"record_memory_bytes"`
	NodeMemoryBytes   float64 `json:"node_memory_bytes"`
	// Traffic of the whole cluster: with gateways, and between the replicas; and the logs' writing.
	AskBytesPerS       float64 `json:"ask_bytes_per_s"`
	ReplicateBytesPerS float64 `json:"replicate_bytes_per_s"`
	NodeNetBytesPerS   float64 `json:"node_net_bytes_per_s"`
	NodeLogBytesPerS   float64 `json:"node_log_bytes_per_s"`
}

// Plan works a need out.
func (f *Figures) Plan(n Need) (*Plan, error) {
	if err := n.Validate(); err != nil {
		return nil, err
	}
	p := &Plan{Need: n, OwnerRPS: n.RPS * (1 - n.DeniedShare*n.HintedShare), AllowedRPS: n.RPS * (1 - n.DeniedShare)}
	if most := n.Principals * n.Limit / n.Window.Seconds(); p.AllowedRPS > most {
		p.CappedRPS = p.AllowedRPS - most
		p.AllowedRPS = most
	}
	f.memory(p)
	f.owners(p)
	f.nodes(p)
	return p, nil
}

// memory counts what is held, on all replicas.
func (f *Figures) memory(p *Plan) {
	n := &p.Need
	admitted := p.AllowedRPS * n.Window.Seconds() / n.Principals
	p.PairsPerKey = min(admitted, n.Limit, f.KeyPairs.Value)
	p.KeyMemoryBytes = replicas * n.Principals * (f.KeyBytes.Value + p.PairsPerKey*f.PairBytes.Value)
	p.RecordMemoryBytes = replicas * p.records() * f.RecordBytes.Value
}

// records are the decisions that are remembered at once.
func (p *Plan) records() float64 { return p.AllowedRPS * p.Need.ReplayHorizon.Seconds() }

// reason is a number with what asks for it.
type reason struct {
	count float64
	why   string
}

// largest is the first of the largest, rounded up.
func largest(reasons ...reason) (int, string) {
	best := reasons[0]
	for _, r := range reasons[1:] {
		if math.Ceil(r.count) > math.Ceil(best.count) {
			best = r
		}
	}
	return int(math.Ceil(best.count)), best.why
}

func (f *Figures) owners(p *Plan) {
	p.Owners, p.OwnersFor = largest(
		reason{1, "there is at least one"},
		reason{p.OwnerRPS / (f.OwnerPerS.Value * f.Utilisation.Value), "decisions per second"},
		reason{p.Need.Principals / f.OwnerKeys.Value, "keys"},
		reason{p.records() / f.OwnerRecords.Value, "replay records"},
	)
}

func (f *Figures) nodes(p *Plan) {
	p.NodeCores = p.OwnerRPS * (f.LeaderCPU.Value + (replicas-1)*f.FollowerCPU.Value) / 1e6
	p.GatewayCores = p.OwnerRPS * f.GatewayCPU.Value / 1e6
	p.Nodes, p.NodesFor = largest(
		reason{replicas, "three replicas"},
		reason{p.NodeCores / (float64(p.Need.Cores) * f.Utilisation.Value), "CPU"},
		reason{float64(p.Owners) / f.NodeOwners.Value, "owners"},
	)
	p.AskBytesPerS = p.OwnerRPS * f.AskBytes.Value
	p.ReplicateBytesPerS = p.OwnerRPS * (replicas - 1) * f.ReplicateBytes.Value
	nodes := float64(p.Nodes)
	p.NodeMemoryBytes = (p.KeyMemoryBytes + p.RecordMemoryBytes) * f.MemoryFactor.Value / nodes
	// What replicas say to each other passes two nodes.
	p.NodeNetBytesPerS = (p.AskBytesPerS + 2*p.ReplicateBytesPerS) / nodes
	p.NodeLogBytesPerS = p.OwnerRPS * replicas * f.LogBytes.Value / nodes
}
