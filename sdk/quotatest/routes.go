package quotatest

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/router"
)

// clusterID is that of every fake.
const clusterID = "00000000-0000-4000-8000-000000000000"

// seed is the key of the slot hash.
var seed = [16]byte{'q', 'u', 'o', 't', 'a', 't', 'e', 's', 't'}

// routes say who owns which slots.
type routes struct {
	version    uint64
	epoch      uint64 // the newest
	partitions []partition
	ranges     []slots
}

type partition struct {
	id     string
	leader int // the number of a node; -1 for none
	frozen bool
}

// slots are a range of slots, both ends included.
type slots struct {
	first, last uint32
	epoch       uint64
	partition   int
}

func newRoutes(partitions, nodes int) routes {
	r := routes{version: 1, epoch: 1}
	for k := range partitions {
		r.partitions = append(r.partitions, partition{id: fmt.Sprint("p", k), leader: k % nodes})
		at := func(k int) uint32 { return uint32(router.NumSlots * k / partitions) }
		r.ranges = append(r.ranges, slots{first: at(k), last: at(k+1) - 1, epoch: 1, partition: k})
	}
	return r
}

// owner is the range that a principal's slot is in.
func (r *routes) owner(principal string) *slots {
	slot := uint32(router.SlotOf(seed, principal))
	i := slices.IndexFunc(r.ranges, func(s slots) bool { return s.first <= slot && slot <= s.last })
	return &r.ranges[i]
}

// view is what a watch is told. It does not change.
type view struct {
	routes   *quoratev1.RoutingMap
	settings []*quoratev1.PolicySettings // all of them, in order
}

// tell has all watches told what holds now, unless they are muted. s.mu is held.
func (s *Server) tell() {
	if s.muted {
		return
	}
	routes := &quoratev1.RoutingMap{Version: s.routes.version, Seed: seed[:]}
	for _, n := range s.nodes {
		routes.Nodes = append(routes.Nodes, &quoratev1.RoutingNode{Id: n.ID, Grpc: n.Addr})
	}
	for _, p := range s.routes.partitions {
		out := &quoratev1.RoutingPartition{Id: p.id}
		if p.leader >= 0 {
			out.Leader = s.nodes[p.leader].ID
		}
		for _, n := range s.nodes {
			out.Replicas = append(out.Replicas, n.ID)
		}
		routes.Partitions = append(routes.Partitions, out)
	}
	for _, r := range s.routes.ranges {
		routes.Ranges = append(routes.Ranges, &quoratev1.RoutingRange{
			Slots:     &quoratev1.SlotRange{FirstSlot: r.first, LastSlot: r.last, Epoch: r.epoch},
			Partition: s.routes.partitions[r.partition].id,
		})
	}
	settings := s.told.settings
	if len(settings) == 0 || settings[0].GetRevision() != s.ledger.revision {
		settings = settingsOf(s.ledger.policy, s.ledger.revision)
	}
	s.told = view{routes, settings}
	s.wake()
}

// wake has the watches look again. s.mu is held.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// settingsPerMessage bounds the classes in one message.
const settingsPerMessage = 512

// settingsOf is what a policy says to gateways, in messages of a bounded size.
func settingsOf(p *policy.Policy, revision uint64) (out []*quoratev1.PolicySettings) {
	var classes []*quoratev1.ClassSettings
	for _, name := range append([]string{policy.DefaultClass}, p.ClassNames()...) {
		classes = append(classes, classSettings(p, name))
	}
	for chunk := range slices.Chunk(classes, settingsPerMessage) {
		out = append(out, &quoratev1.PolicySettings{
			Revision: revision, Version: p.Version, Classes: chunk, More: true,
		})
	}
	out[len(out)-1].More = false
	return out
}

func classSettings(p *policy.Policy, name string) *quoratev1.ClassSettings {
	_, class := p.ClassOf(name)
	c := &quoratev1.ClassSettings{
		Name: name, Timeout: durationpb.New(time.Duration(class.TimeoutNanos)),
		ReplayHorizon: durationpb.New(time.Duration(class.ReplayHorizonNanos)), Disabled: class.Disabled,
		OnUnavailable: quoratev1.FailureMode_FAILURE_MODE_DENY,
	}
	switch class.OnUnavailable {
	case policy.FailDeny:
	case policy.FailAllow:
		c.OnUnavailable = quoratev1.FailureMode_FAILURE_MODE_ALLOW
	case policy.FailLocal:
		c.OnUnavailable = quoratev1.FailureMode_FAILURE_MODE_LOCAL
		c.LocalLimit = class.LocalLimit.Max
		c.LocalWindow = durationpb.New(time.Duration(class.LocalLimit.WindowNanos))
	}
	return c
}

// Partition is the id of the partition that decides for a principal.
func (s *Server) Partition(principal string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.routes.partitions[s.routes.owner(principal).partition].id
}

// Leader is the node that decides for a principal; nil when nobody leads its partition.
func (s *Server) Leader(principal string) *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaderOf(s.routes.owner(principal).partition)
}

func (s *Server) leaderOf(partition int) *Node {
	if k := s.routes.partitions[partition].leader; k >= 0 {
		return s.nodes[k]
	}
	return nil
}

// Lead has a node lead a partition from now on, and nobody with nil. Watches are told, with the same version of the
// map, unless they are muted.
func (s *Server) Lead(partition string, n *Node) error {
	return s.change(partition, func(p *partitionChange) {
		p.leader = -1
		if n != nil {
			p.leader = n.number
		}
	})
}

// Raise gives all slots of a partition a newer ownership epoch, as a move would: checks that were routed by the older
// one are refused with wrong_epoch.
func (s *Server) Raise(partition string) error {
	return s.change(partition, func(p *partitionChange) { p.raise() })
}

// Split gives the upper half of a partition's first range to a new partition, under a newer epoch, led by a node.
func (s *Server) Split(partition string, leader *Node) (id string, err error) {
	err = s.change(partition, func(p *partitionChange) { id = p.split(leader) })
	if err == nil && id == "" {
		err = fmt.Errorf("quotatest: partition %s cannot be split: it is too small, or there are %d already",
			partition, maxPartitions)
	}
	return id, err
}

// Freeze has the checks of a partition refused with frozen, as during a move, until Thaw.
func (s *Server) Freeze(partition string) error {
	return s.change(partition, func(p *partitionChange) { p.frozen = true })
}

// Thaw ends Freeze.
func (s *Server) Thaw(partition string) error {
	return s.change(partition, func(p *partitionChange) { p.frozen = false })
}

// partitionChange is a partition while it is changed.
type partitionChange struct {
	*partition
	number int
	routes *routes
}

func (s *Server) change(id string, f func(*partitionChange)) error {
	if err := s.changePartition(id, f); err != nil {
		return err
	}
	return s.settle()
}

func (s *Server) changePartition(id string, f func(*partitionChange)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.routes.partitions, func(p partition) bool { return p.id == id })
	if i < 0 {
		return fmt.Errorf("quotatest: there is no partition %q", id)
	}
	f(&partitionChange{&s.routes.partitions[i], i, &s.routes})
	s.tell()
	return nil
}

func (p *partitionChange) raise() {
	r := p.routes
	r.version, r.epoch = r.version+1, r.epoch+1
	for i := range r.ranges {
		if r.ranges[i].partition == p.number {
			r.ranges[i].epoch = r.epoch
		}
	}
}

func (p *partitionChange) split(leader *Node) string {
	r := p.routes
	i := slices.IndexFunc(r.ranges, func(s slots) bool { return s.partition == p.number && s.first < s.last })
	if i < 0 || len(r.partitions) >= maxPartitions || leader == nil {
		return ""
	}
	r.version, r.epoch = r.version+1, r.epoch+1
	half := r.ranges[i].first + (r.ranges[i].last-r.ranges[i].first)/2
	upper := slots{first: half + 1, last: r.ranges[i].last, epoch: r.epoch, partition: len(r.partitions)}
	r.ranges[i].last = half
	r.ranges = slices.Insert(r.ranges, i+1, upper)
	id := fmt.Sprint("p", len(r.partitions))
	r.partitions = append(r.partitions, partition{id: id, leader: leader.number})
	return id
}
