package run

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/disk"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
	"github.com/quorate/quorate/jepsen/workload"
	"github.com/quorate/quorate/sdk"
)

// makeCluster makes a cluster whose nodes tell what they apply.
func (r *run) makeCluster(ctx context.Context, dir string, policy history.Policy) (*cluster.Cluster, error) {
	if err := os.Setenv("QUORATE_TAP", r.Dir); err != nil {
		return nil, err
	}
	var dataDir func(id string) (string, error)
	if r.config.Available[Disks] {
		r.images = map[string]*disk.Image{}
		dataDir = func(id string) (string, error) { return r.mounted(dir, id) }
	}
	return cluster.NewCluster(ctx, dir, cluster.Options{
		Binary: r.Program, Nodes: r.Nodes + spares, First: r.Nodes, Partitions: partitions, Policy: policy,
		Cuts: true, Moves: true,
		SnapshotLogMiB: snapshotLogMiB,
		Namespaces:     r.config.Available[Namespaces], DataDir: dataDir,
		Environment: func(n *process.Node) []string {
			env := []string{"QUORATE_CLOCK=" + clockFile(dir, n), "QUORATE_SLOW_SYNC=" + slowFile(dir, n)}
			if r.Mutant != "" {
				env = append(env, "QUORATE_UNGUARDED="+r.Mutant)
			}
			return env
		},
	})
}

// doors are the ways by which clients ask.
type doors struct {
	all     []workload.Door
	gateway *workload.SDK
	http    *workload.HTTP
	grpc    *workload.GRPC
}

func (r *run) openDoors() (*doors, error) {
	config, err := r.cluster.GatewayTLS()
	if err != nil {
		return nil, err
	}
	dial := r.cluster.DialContext
	d := &doors{http: workload.NewHTTP(config, dial), grpc: workload.NewGRPC(config, dial)}
	d.all = []workload.Door{d.http, d.grpc}
	var addrs []string
	for _, n := range r.cluster.Nodes[:r.Nodes] {
		addrs = append(addrs, n.Dialled.GRPC)
	}
	client, err := sdk.New(addrs, sdk.WithTLS(config), sdk.WithDialOptions(workload.DialOptions(dial)...))
	if err != nil {
		return nil, err
	}
	d.gateway = &workload.SDK{Client: client}
	return d, nil
}

func (d *doors) close() error {
	d.http.Close()
	return errors.Join(d.grpc.Close(), d.gateway.Client.Close())
}

// stopNodes ends the processes, those that have ended by themselves too.
func (r *run) stopNodes(ctx context.Context) error {
	var errs []error
	for _, n := range r.cluster.Nodes {
		if n.Ended() {
			errs = append(errs, fmt.Errorf("node %s has ended by itself; its log ends:\n%s", n.ID, n.Tail()))
		}
	}
	return errors.Join(append(errs, r.cluster.Close(), r.unmountAll(ctx))...)
}
