package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	guber "github.com/gubernator-io/gubernator/v2"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quorate/quorate/bench"
)

const (
	// gubernatorBatch is what one request may hold.
	gubernatorBatch = 1000
	// gubernatorSenders are the requests under way to each node: what queues while all are under way goes together.
	gubernatorSenders = 4
)

// batched asks Gubernator, whatever waits together in one request.
type batched struct {
	queues []chan waiting
	work   sync.WaitGroup
}

// waiting is a check, and where its answer goes.
type waiting struct {
	principal string
	answer    chan<- answer
}

type answer struct {
	outcome bench.Outcome
	err     error
}

// Do has one check decided; workers spread over the nodes.
func (b *batched) Do(ctx context.Context, worker int, principal string) (bench.Outcome, error) {
	got := make(chan answer, 1)
	select {
	case b.queues[worker%len(b.queues)] <- waiting{principal, got}:
	case <-ctx.Done():
		return bench.Failed, ctx.Err()
	}
	select {
	case a := <-got:
		return a.outcome, a.err
	case <-ctx.Done():
		return bench.Failed, ctx.Err()
	}
}

// send takes what waits, and asks.
func (b *batched) send(ctx context.Context, client guber.V1Client, queue <-chan waiting) {
	for {
		var batch []waiting
		select {
		case w := <-queue:
			batch = append(batch, w)
		case <-ctx.Done():
			return
		}
	more:
		for len(batch) < gubernatorBatch {
			select {
			case w := <-queue:
				batch = append(batch, w)
			default:
				break more
			}
		}
		req := &guber.GetRateLimitsReq{}
		for _, w := range batch {
			req.Requests = append(req.Requests, &guber.RateLimitReq{
				Name: "bench", UniqueKey: w.principal, Hits: 1, Limit: limit, Duration: window.Milliseconds(),
				Algorithm: guber.Algorithm_TOKEN_BUCKET,
			})
		}
		resp, err := client.GetRateLimits(ctx, req)
		for i, w := range batch {
			w.answer <- answerOf(resp, i, err)
		}
	}
}

func answerOf(resp *guber.GetRateLimitsResp, i int, err error) answer {
	switch {
	case err != nil:
		return answer{bench.Failed, err}
	case i >= len(resp.Responses):
		return answer{bench.Failed, errors.New("an answer is missing")}
	case resp.Responses[i].Error != "":
		return answer{bench.Failed, errors.New(resp.Responses[i].Error)}
	case resp.Responses[i].Status == guber.Status_OVER_LIMIT:
		return answer{bench.Denied, nil}
	}
	return answer{bench.Allowed, nil}
}

// startGubernator runs three nodes, each of which is this program as a process of its own: the daemon as its module
// has it, told who the others are.
func startGubernator(ctx context.Context, at place) (*server, error) {
	const nodes = 3
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var addrs []string
	for k := range nodes {
		addrs = append(addrs, at.addr(10*k))
	}
	s := &server{}
	for k := range nodes {
		err := s.run(at, fmt.Sprintf("g%d", k), self, nil,
			gubernatorNode, addrs[k], at.addr(10*k+1), strings.Join(addrs, ","))
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	working, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b := &batched{}
	s.Target = b
	s.closing = append(s.closing, func() { cancel(); b.work.Wait() })
	for _, addr := range addrs {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.closing = append(s.closing, func() { _ = conn.Close() })
		client := guber.NewV1Client(conn)
		err = s.await(ctx, func(ctx context.Context) error {
			h, err := client.HealthCheck(ctx, &guber.HealthCheckReq{}, grpc.WaitForReady(true))
			if err == nil && (h.PeerCount != nodes || h.Status != "healthy") {
				err = fmt.Errorf("%d of %d nodes, %s: %s", h.PeerCount, nodes, h.Status, h.Message)
			}
			return err
		})
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		queue := make(chan waiting, bench.MaxClients)
		b.queues = append(b.queues, queue)
		for range gubernatorSenders {
			b.work.Go(func() { b.send(working, client, queue) })
		}
	}
	return s, nil
}

// gubernatorNode is the first argument of this program when it is to be a node of Gubernator: its gRPC and HTTP
// addresses follow, and the gRPC addresses of all.
const gubernatorNode = "gubernator-node"

// serveGubernator is such a node, until ctx ends.
func serveGubernator(ctx context.Context, args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("%s: give the gRPC address, the HTTP address, and the gRPC addresses of all nodes", gubernatorNode)
	}
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel)
	d, err := guber.SpawnDaemon(ctx, guber.DaemonConfig{
		GRPCListenAddress: args[0], HTTPListenAddress: args[1], AdvertiseAddress: args[0], InstanceID: args[0],
		CacheSize: 10 * keys, Logger: logger,
	})
	if err != nil {
		return err
	}
	defer d.Close()
	d.PeerInfo = guber.PeerInfo{GRPCAddress: args[0]}
	var all []guber.PeerInfo
	for _, addr := range strings.Split(args[2], ",") {
		all = append(all, guber.PeerInfo{GRPCAddress: addr})
	}
	d.SetPeers(all)
	<-ctx.Done()
	return nil
}
