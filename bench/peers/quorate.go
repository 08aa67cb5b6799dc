package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/quorate/quorate/bench"
	"github.com/quorate/quorate/sdk"
)

// quoratePolicy has the load's limit, and a timeout that does not cut off a queue.
const quoratePolicy = `version: bench
default:
  limits: [{name: default, limit: %d, window: %s}]
  timeout: 1s
  replay_horizon: 10s
`

// startQuorate runs three nodes as processes, with one partition, as Redis is one: its state is one shard too.
func (c *config) startQuorate(ctx context.Context, at place) (*server, error) {
	policy := filepath.Join(at.dir, "policy.yaml")
	if err := os.WriteFile(policy, fmt.Appendf(nil, quoratePolicy, limit, window), 0o600); err != nil {
		return nil, err
	}
	s := &server{}
	err := s.run(at, "quorate", c.quorate, nil, "dev", "--processes", "--partitions", "1", "-o", "json",
		"--policy", policy,
		"--base-port", fmt.Sprint(at.port), "--data-dir", filepath.Join(at.dir, "data"))
	if err != nil {
		return nil, err
	}
	var ready struct {
		Nodes []struct {
			PID  int    `json:"pid"`
			GRPC string `json:"grpc"`
		} `json:"nodes"`
	}
	err = s.await(ctx, func(context.Context) error {
		line, err := os.ReadFile(s.processes[0].log)
		if err == nil {
			err = json.Unmarshal(line, &ready)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	var addrs []string
	for _, n := range ready.Nodes {
		addrs, s.pids = append(addrs, n.GRPC), append(s.pids, n.PID)
	}
	client, err := sdk.New(addrs,
		sdk.WithPrincipalCeiling(0), sdk.WithPrincipalInFlight(0), sdk.WithHintCapacity(0),
		sdk.WithMaxInFlight(bench.MaxClients))
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.closing = append(s.closing, func() { _ = client.Close() })
	s.Target = &bench.Quota{Clients: []*sdk.Client{client}, Class: "default"}
	if err := client.Ready(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}
