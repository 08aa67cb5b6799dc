package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/quorate/quorate/bench"
)

// attempts bounds the transactions of one check: each but the last has lost against another client.
const attempts = 100

// rollingEtcd is an exact rolling log in etcd: a key per principal with the instants of its admissions, replaced by
// compare-and-set. What a client has seen last of a key it keeps, so that an admission is one transaction, unless
// another was faster.
type rollingEtcd struct {
	client *clientv3.Client
	known  [256]struct {
		sync.Mutex // guards of
		of         map[string]version
	}
}

// version is a key as it was seen.
type version struct {
	revision int64 // of its last change; 0: there is no such key
	instants []byte
}

func (e *rollingEtcd) last(principal string) version {
	s := &e.known[hash(principal)]
	s.Lock()
	defer s.Unlock()
	return s.of[principal]
}

func (e *rollingEtcd) learn(principal string, v version) {
	s := &e.known[hash(principal)]
	s.Lock()
	defer s.Unlock()
	if s.of == nil {
		s.of = map[string]version{}
	}
	if v.revision >= s.of[principal].revision {
		s.of[principal] = v
	}
}

func hash(s string) (h uint8) {
	for i := range len(s) {
		h = h*31 + s[i]
	}
	return h
}

// Do has one check decided.
func (e *rollingEtcd) Do(ctx context.Context, _ int, principal string) (bench.Outcome, error) {
	for range attempts {
		v := e.last(principal)
		now := time.Now()
		next, room := admit(v.instants, now)
		if !room {
			return bench.Denied, nil // nobody but time takes from a log
		}
		r, err := e.client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(principal), "=", v.revision)).
			Then(clientv3.OpPut(principal, string(next))).
			Else(clientv3.OpGet(principal)).
			Commit()
		switch {
		case err != nil:
			return bench.Failed, err
		case r.Succeeded:
			e.learn(principal, version{r.Header.Revision, next})
			return bench.Allowed, nil
		}
		for _, kv := range r.Responses[0].GetResponseRange().Kvs {
			e.learn(principal, version{kv.ModRevision, kv.Value})
		}
	}
	return bench.Failed, errors.New("others were faster each time")
}

// admit is a log, the oldest first, without what has expired and with one admission more, if there is room.
func admit(instants []byte, now time.Time) (next []byte, room bool) {
	const size = 8
	for len(instants) >= size &&
		now.UnixNano()-int64(binary.BigEndian.Uint64(instants)) >= int64(window) {
		instants = instants[size:]
	}
	if len(instants)/size >= limit {
		return nil, false
	}
	next = append(make([]byte, 0, len(instants)+size), instants...)
	return binary.BigEndian.AppendUint64(next, uint64(now.UnixNano())), true
}

// startEtcd runs three nodes.
func startEtcd(ctx context.Context, at place) (*server, error) {
	const nodes = 3
	var cluster, clients []string
	for k := range nodes {
		cluster = append(cluster, fmt.Sprintf("e%d=http://%s", k, at.addr(10*k+1)))
		clients = append(clients, at.addr(10*k))
	}
	s := &server{}
	for k := range nodes {
		err := s.run(at, fmt.Sprintf("e%d", k), "etcd", nil, "--name", fmt.Sprintf("e%d", k),
			"--data-dir", filepath.Join(at.dir, fmt.Sprintf("e%d", k)),
			"--listen-client-urls", "http://"+clients[k], "--advertise-client-urls", "http://"+clients[k],
			"--listen-peer-urls", "http://"+at.addr(10*k+1), "--initial-advertise-peer-urls", "http://"+at.addr(10*k+1),
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new", "--log-level", "error")
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: clients, DialTimeout: time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.closing = append(s.closing, func() { _ = client.Close() })
	err = s.await(ctx, func(ctx context.Context) error {
		_, err := client.Put(ctx, "ready", "")
		return err
	})
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.Target = &rollingEtcd{client: client}
	return s, nil
}
