package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// The states of a node that commands mind.
const (
	nodeActive   = "active"
	nodeDraining = "draining"
	nodeRemoved  = "removed"
)

// nodesView is the list of nodes as it is printed.
type nodesView struct {
	Nodes []nodeInfoView `json:"nodes"`
}

// nodeInfoView is a node as the control group has it.
type nodeInfoView struct {
	ID         string   `json:"id"`
	Instance   string   `json:"instance"`
	GRPC       string   `json:"grpc"`
	HTTP       string   `json:"http"`
	Raft       string   `json:"raft"`
	Zone       string   `json:"zone"`
	State      string   `json:"state"` // active, draining, removed or waiting
	Partitions []string `json:"partitions"`
	Down       string   `json:"down"`    // for how long; empty while it is up
	Control    string   `json:"control"` // voter, learner or empty

	down time.Duration
}

func nodesOf(r *quoratev1.ListNodesResponse) nodesView {
	v := nodesView{Nodes: []nodeInfoView{}}
	for _, n := range r.GetNodes() {
		v.Nodes = append(v.Nodes, nodeInfoView{
			ID: n.GetId(), Instance: n.GetInstance(), GRPC: n.GetGrpc(), HTTP: n.GetHttp(), Raft: n.GetRaft(),
			Zone: n.GetZone(), State: n.GetState(), Partitions: append([]string{}, n.GetPartitions()...),
			Down: durationOf(n.GetDown()), Control: n.GetControl(), down: n.GetDown().AsDuration(),
		})
	}
	return v
}

// one is the node with an id.
func (v nodesView) one(id string) (nodeInfoView, bool) {
	for _, n := range v.Nodes {
		if n.ID == id {
			return n, true
		}
	}
	return nodeInfoView{}, false
}

func newNodeList(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Show the nodes of the cluster, and those that wait to be added",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				r, err := call(ctx, s, s.ListNodes, &quoratev1.ListNodesRequest{})
				if err != nil {
					return err
				}
				return o.printNodes(cmd, nodesOf(r))
			})
		},
	}
}

func (o *options) printNodes(cmd *cobra.Command, v nodesView) error {
	return o.output.print(cmd.OutOrStdout(), v, func(t table.Writer) {
		t.AppendHeader(table.Row{"node", "state", "zone", "control", "grpc", "http", "raft", "down for", "partitions"})
		for _, n := range v.Nodes {
			down := ""
			if n.Down != "" {
				down = aboutText(n.down)
			}
			t.AppendRow(table.Row{
				n.ID, n.State, dash(n.Zone), dash(n.Control), n.GRPC, n.HTTP, n.Raft, dash(down), shortList(n.Partitions),
			})
		}
	})
}

// shortList writes a list of names for a cell of a table.
func shortList(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], " "), len(names)-most)
	}
	return dash(strings.Join(names, " "))
}
